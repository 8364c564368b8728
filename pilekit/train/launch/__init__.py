"""Processes and signals: several ranks on this machine or in a notebook, restarts, Ctrl-C."""
