"""Building a corpus from sources: for now the demo's, made of what every Python installation has."""

from pilekit.assemble.building import demo_corpus

__all__ = ["demo_corpus"]
