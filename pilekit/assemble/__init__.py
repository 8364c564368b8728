"""Building a corpus from sources. So far this is the demo's corpus: texts from the Python installation (sources.py),
edited copies of some (reposts.py) and generated arithmetic (arithmetic.py), split and written as shards
(building.py)."""

from pilekit.assemble.building import demo_corpus

__all__ = ["demo_corpus"]
