"""Processes and signals of a run: ranks on this machine, restarts, and a clean stop on Ctrl-C and SIGTERM.

launch.py starts the ranks of `pilekit train --nproc-per-node` and passes signals on to them. notebook.py runs a
function in ranks from a notebook. interrupt.py turns the signals into a request that the training loop obeys between
two steps.
"""
