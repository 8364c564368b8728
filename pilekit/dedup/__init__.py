"""Near-duplicate removal with proof: sketch, match, compare, choose, apply; one file per step."""
