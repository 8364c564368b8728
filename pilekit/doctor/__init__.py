"""`pilekit doctor`: machine.py says what is installed and what the machine has, rates.py measures and estimates speeds.

Nothing here may need a package that could be missing or broken: each is imported where it is asked about.
"""
