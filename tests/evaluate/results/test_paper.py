"""The paper's variant against the paper's own tables."""

from __future__ import annotations

import math

import pytest

from pilekit.corpus import PublishedTable, load_manifest
from pilekit.evaluate.results.paper import bytes_of_tokens
from pilekit.evaluate.results.records import Records, ScoredDocument
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.tabulate import tabulate
from tests.evaluate.documents import protocol_of

PILE = load_manifest()
TABLES: dict[str, PublishedTable] = {table.title: table for table in PILE.tables}
BPB, PERPLEXITY = TABLES["Table 2"], TABLES["Table 8"]
MODELS = range(len(BPB.models))


def constant(subset: str) -> float:
    found = PILE.subset(subset)
    assert found is not None
    assert found.tokens_per_byte is not None
    return found.tokens_per_byte


def test_table_7_times_log2_of_table_8_is_table_2() -> None:
    """In all 176 cells; and the overall figures are the whole Pile's constant times log2 of theirs."""
    cells = {
        (name, model): constant(name) * math.log2(PERPLEXITY.subsets[name][model]) - BPB.subsets[name][model]
        for name in BPB.subsets
        for model in MODELS
    }
    assert len(cells) == 22 * 8
    assert max(map(abs, cells.values())) <= 0.0003
    whole = PILE.totals.tokens_per_byte
    assert whole is not None
    for model in MODELS:
        assert whole * math.log2(PERPLEXITY.overall[model]) == pytest.approx(BPB.overall[model], abs=1e-4)


def in_paper(documents: list[ScoredDocument]) -> BitsPerByte:
    return tabulate(Records.of(documents, ["test.jsonl"], PILE), protocol_of(paper=True), PILE)


def documents_like_the_paper(model: int) -> list[ScoredDocument]:
    """A document per subset, with 1,000 tokens at the perplexity of Table 8, and an arbitrary number of bytes."""
    return [
        ScoredDocument("test.jsonl", n, n, name, 17 + n, 1000, 1000 * math.log(PERPLEXITY.subsets[name][model]))
        for n, name in enumerate(PERPLEXITY.subsets)
    ]


def test_perplexities_of_table_8_give_table_2() -> None:
    for model in MODELS:
        result = in_paper(documents_like_the_paper(model))
        for name, score in result.subsets.items():
            assert score.bpb == pytest.approx(BPB.subsets[name][model], abs=0.0003)
        nats = result.overall.nll / result.overall.tokens
        assert result.overall.bpb == pytest.approx(0.29335 * nats / math.log(2))


def test_without_all_subsets_the_whole_piles_constant_does_not_hold() -> None:
    result = in_paper(documents_like_the_paper(0)[1:])
    assert result.overall.bpb is None
    assert result.weighted is not None
    assert result.weighted.missing == (PILE.subsets[0].name,)
    assert bytes_of_tokens(100, "Mine", PILE) == 0.0


def test_intervals_are_of_tokens() -> None:
    """Bytes affect neither the figures nor the intervals of the paper's variant."""
    documents = [ScoredDocument("test.jsonl", n, n, "ArXiv", 1 + n, 100, 100.0 + n) for n in range(50)]
    others = [ScoredDocument("test.jsonl", n, n, "ArXiv", 5000 - n * n, 100, 100.0 + n) for n in range(50)]
    found, same = (in_paper(some).subsets["ArXiv"] for some in (documents, others))
    assert found.interval == same.interval
    assert found.interval is not None
    assert found.bpb is not None
    assert found.interval[0] < found.bpb < found.interval[1]
