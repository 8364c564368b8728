"""`pilekit verify`: reads every shard once and lists findings, each with shard, frame, line and byte.

verify.py goes through a corpus, shard.py through one shard. checks.py compares labels, index and frames with the text.
sha256sums.py reads and writes files of sums. Results are data (findings.py), which the command line prints.
"""
