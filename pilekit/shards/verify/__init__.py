"""`pilekit verify`: checksums, frames, lines, labels and indexes, each finding with its place."""
