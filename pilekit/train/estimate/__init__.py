"""The memory of a run, computed before anything is allocated."""
