"""Counting a corpus: documents, bytes, sizes, tokens and copies per subset; as a table, as JSON, as a figure."""

from __future__ import annotations

from pilekit.stats.summary import CorpusStats, SubsetStats, corpus_stats

__all__ = ["CorpusStats", "SubsetStats", "corpus_stats"]
