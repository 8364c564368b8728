"""A model folder loaded and proven: causal, safetensors only, nothing executed; its device and precision."""
