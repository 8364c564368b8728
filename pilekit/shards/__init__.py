"""How a corpus is stored: zstd frames, lines, records; reading and writing shards."""

from pilekit.shards.atomic import write_atomically
from pilekit.shards.damage import BadLine, ShardDamage, SkippedLines
from pilekit.shards.reading import ShardReader, read, read_corpus, record_format
from pilekit.shards.writing import ShardWriter

__all__ = [
    "BadLine",
    "ShardDamage",
    "ShardReader",
    "ShardWriter",
    "SkippedLines",
    "read",
    "read_corpus",
    "record_format",
    "write_atomically",
]
