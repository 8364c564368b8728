"""From `[model]` to a model and back.

`build.py` makes the model from `presets.py`, a config.json or a model_dir; `blocks.py` finds its blocks for sharding;
`export.py` writes the trained model to `model/`.
"""
