"""`pilekit doctor`: machine.py reports packages and hardware.

Nothing here may need a package that could be missing or broken: each is imported where it is checked.
"""
