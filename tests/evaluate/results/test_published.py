"""Published figures are shown only beside comparable figures; and the warnings about a result's data."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pilekit.corpus import Manifest, load_manifest
from pilekit.evaluate.results.published import published_beside, warnings_on
from pilekit.evaluate.results.records import Records, ScoredDocument
from tests.evaluate.documents import protocol_of

PILE, SEVENTEEN = load_manifest(), load_manifest("pile-uncopyrighted")
NAMES = [subset.name for subset in PILE.subsets]
PROTOCOL = protocol_of(max_length=512)


def records_of(labels: Sequence[str] = NAMES, shards: Sequence[str] = ("val.jsonl",)) -> Records:
    documents = [ScoredDocument(shards[0], n, n, label, 10, 3, 5.0) for n, label in enumerate(labels)]
    return Records.of(documents, shards, PILE)


def test_the_pile_is_known_by_its_shards_names() -> None:
    for shards, split in (
        (["val.jsonl"], "val"),
        (["test/00.jsonl", "test/01.jsonl"], "test"),
        (["val.jsonl", "test.jsonl"], "val and test"),
        (["train/00.jsonl"], None),
        (["val.jsonl", "train/00.jsonl"], None),
        (["minipile-00.jsonl"], None),
    ):
        published = published_beside(records_of(shards=shards), PROTOCOL, PILE)
        assert (published is None) == (split is None)
        assert published is None or f"Here: 22 documents of {split}, " in published.differs


def test_figures_are_shown_beside_the_pile_alone() -> None:
    """All labels that were met count, not only the scored ones."""
    for changes in ({"labels": NAMES[1:]}, {"labels": [*NAMES, "Mine"]}, {"context_len": 2}, {"kind": "masked"}):
        for records in (records_of(), records_of(["ArXiv"])):
            assert published_beside(records, PROTOCOL | changes, PILE) is None
    for manifest in (load_manifest("demo"), Manifest(name="own"), SEVENTEEN):
        labels = [subset.name for subset in manifest.subsets] or ["A"]
        assert published_beside(records_of(labels), PROTOCOL | {"labels": labels}, manifest) is None
    some = published_beside(records_of(NAMES[:3]), PROTOCOL, PILE)  # an overall figure needs all subsets
    assert ({column.overall for column in some.columns}, some.overall) == ({None}, ())
    assert some.columns[0].subsets[NAMES[0]] == 1.0878


def in_tokens(factor: float, short: int = 0) -> Records:
    """20 documents of 10,000 bytes per subset, with `factor` times the tokens of the constants, minus `short`."""
    rates = {subset.name: subset.tokens_per_byte or 0 for subset in PILE.subsets}
    documents = [
        ScoredDocument("test.jsonl", n, n, name, 10_000, round(rates[name] * 10_000 * factor) - short, 500.0)
        for n, name in enumerate(name for name in NAMES for _ in range(20))
    ]
    return Records.of(documents, ["test.jsonl"], PILE)


def test_the_papers_constants_fit_one_tokenizer() -> None:
    protocol = {**PROTOCOL, "paper": True}
    for factor, fits in ((0.91, True), (1.09, True), (0.89, False), (1.11, False)):
        records = in_tokens(factor)
        warnings = warnings_on(records, protocol, PILE)
        assert (warnings == ()) == fits
        assert (published_beside(records, protocol, PILE) is not None) == fits
        if not fits:
            size = sum(subset.tokens_per_byte or 0 for subset in PILE.subsets) / 22
            said = f"by which this text has {size:.3f} tokens per byte, and here it has {size * factor:.3f}"
            assert said in warnings[0]
            assert warnings_on(records, PROTOCOL, PILE) == ()
    # Without a prefix, first tokens are not predicted, but they count here.
    assert warnings_on(in_tokens(0.9, short=1), {**protocol, "prefix": {"id": None}}, PILE) == ()
    assert len(warnings_on(in_tokens(0.9, short=1), protocol, PILE)) == 1
    assert warnings_on(records_of(["Mine"]), protocol, PILE) == ()


def test_seventeen_subsets_have_a_warning() -> None:
    seventeen = [subset.name for subset in SEVENTEEN.subsets]
    for labels, manifest in ((seventeen, PILE), (["ArXiv"], SEVENTEEN)):
        [warning] = warnings_on(records_of(["ArXiv"]), {**PROTOCOL, "labels": labels}, manifest)
        assert "17 of the Pile's 22 subsets" in warning
    assert warnings_on(records_of(seventeen), PROTOCOL, PILE) == ()


def test_columns_and_differences() -> None:
    published = published_beside(records_of(), PROTOCOL, PILE)
    models = [column.model for column in published.columns]
    assert models[:5] == ["GPT-2 small", "GPT-2 medium", "GPT-2 large", "GPT-2 XL", "GPT-3 ada"]
    assert models[8:] == ["1.3B trained on 40 GB of the Pile"]
    small, trained = published.columns[0], published.columns[-1]
    assert (small.overall, small.subsets["ArXiv"], small.certainty) == (1.2253, 1.3548, "verified")
    assert (trained.overall, trained.subsets["ArXiv"], trained.certainty) == (0.9433, 0.7945, "secondary")
    assert all(column.split == "test" for column in published.columns)
    assert [(column.overall, column.split) for column in published.overall] == [
        (figure, "val") for figure in (0.9281, 1.3143, 1.1180)
    ]
    for part in ("Table 2", "a random tenth of the Pile test set", "1,024 tokens", "Here: 22 documents of val"):
        assert part in published.differs
    assert published.differs.endswith("windows of 512 tokens, bytes counted.")
    json.dumps(published.to_dict(), allow_nan=False)
    on_test = published_beside(in_tokens(1), {**PROTOCOL, "paper": True, "prefix": {"id": None}}, PILE)
    assert on_test.differs.endswith(
        "Here: 440 documents of test, windows of 512 tokens, the paper's constants, first tokens not predicted."
    )
    assert {column.split for column in on_test.overall} == {"test"}
    assert "DeepSeek-V2" in [column.model for column in on_test.overall]
