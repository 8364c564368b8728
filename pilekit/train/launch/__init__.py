"""Processes and signals of a run: ranks on this machine, restarts, and a clean stop on Ctrl-C and SIGTERM.

launch.py starts the ranks of `pilekit train --nproc-per-node`, passes signals on to them, and names the rank that
failed first. notebook.py runs a function in ranks from a notebook, with the same words for its failures. interrupt.py
turns signals into a request that the training loop obeys between two steps. environment.py finds and sets the variables
of a rank.
"""
