"""The record of a run: metrics.jsonl, TensorBoard, warnings, profiles."""
