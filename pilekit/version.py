"""The version of pilekit, which the files that it writes name; no file imports the package itself for it."""

__version__ = "0.1.0"
