"""From `[model]` to a model and back.

`shape.py` finds the model's shape from a preset, a config.json, a model_dir or a model object, and `build.py` makes the
model with its weights. `attention.py` chooses how it attends, and `varlen.py` is one such way. `lora.py` adds adapters.
`export.py` writes the trained model to `model/`, and `prune.py` a smaller copy of a model.
"""
