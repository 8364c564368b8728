"""One optimizer step: loss, gradients, ZeRO sharding, precision, the update."""
