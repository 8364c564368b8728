"""`pilekit verify`: reads every shard once and lists findings, each with shard, frame, line and byte.

verify.py verifies a corpus, shard.py one shard. While the shard is read, checks.py compares its documents
with the manifest's labels and with the index; frames.py compares its frames with a seek table, and locates damage.
sha256sums.py reads and writes files of sums. Results are `Finding`s (findings.py), which the command prints.
"""
