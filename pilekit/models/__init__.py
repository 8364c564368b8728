"""Load a model folder whole from safetensors, without executing anything in it, and find the model's parts.

`load.py` reads the folder (`folder.py` checks its files, `adapter.py` adds a PEFT adapter). `causal.py` proves that the
model is causal, and finds its trunk, its head and its logit transform (`logit_transform.py`). `masked.py` does the same
for a masked model. `transformer_blocks.py` finds a model's blocks. `presets.py` holds the shapes that a config can
name. `device.py` chooses device and precision, and `quantize.py` rounds weights to int8 or int4.
"""
