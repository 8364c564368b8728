"""One optimizer step.

A micro-batch goes through `step_engine.py`: the model with its loss (`losses.py`, whose head is `chunked_loss.py`) runs
forward and backward under the ZeRO stage of `sharding.py`, in its precision, with the loss scale of fp16
(`loss_scale.py`). Then `optimizer.py` moves the weights at the rate of `schedule.py`. `failed_step.py` reports a loss
or gradient that is not a number.
"""
