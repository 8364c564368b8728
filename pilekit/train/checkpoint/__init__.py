"""Checkpoints: the state of a run between two steps, saved while training continues, verified, and found again.

`Checkpoints` (saving.py) copies a rank's tensors in a thread and writes them with torch.distributed.checkpoint
(tensors.py). Rank 0 then writes the manifest (state_file.py), which names every file with its hash, and renames the
folder into place (step_folders.py). Loading goes the other way: the newest folder whose files match its manifest is
read.
"""
