"""Building a corpus from the sources that a manifest names: find_sources.py finds the files, read_source.py reads and
counts them, corpus_plan.py decides, write.py reads them again and writes the shards, and assemble_corpus.py joins the
steps. demo.py makes the demo's corpus of the texts in demo_texts.py."""

from pilekit.assemble.assemble_corpus import AssembledCorpus, assemble_corpus
from pilekit.assemble.demo import demo_corpus

__all__ = ["AssembledCorpus", "assemble_corpus", "demo_corpus"]
