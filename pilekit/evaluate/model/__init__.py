"""A model folder, loaded whole from safetensors with nothing executed, and the parts of a causal model in it.

`load.py` reads the folder, `causal.py` proves that the model is causal and finds its trunk, head and
`logit_transform.py`, `device.py` chooses device and precision.
"""
