"""From `[model]` to a model and back.

`build.py` makes the model from a preset, a config.json or a model_dir. `export.py` writes the trained model to
`model/`.
"""
