"""From `[model]` to a model, and from a trained model to `model/`."""
