"""Tests of `pilekit.cutting`."""
