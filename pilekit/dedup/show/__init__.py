"""`pilekit duplicates`: removed documents beside the kept ones, with their differing words marked."""
