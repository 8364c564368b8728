"""Near-duplicate removal with proof: sketch, match, verify, choose, apply; one file per step."""
