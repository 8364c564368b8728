"""Building a corpus from sources: for now the demo's, made of what every Python installation has."""

from pilekit.assemble.building import DEMO_CORPUS, claim, demo_corpus, finish

__all__ = ["DEMO_CORPUS", "claim", "demo_corpus", "finish"]
