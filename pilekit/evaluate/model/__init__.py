"""Load a model folder whole from safetensors, without executing anything in it, and find the parts of a causal model.

`load.py` reads the folder. `causal.py` proves that the model is causal, and finds its trunk, its head and its logit
transform (`logit_transform.py`). `device.py` chooses device and precision.
"""
