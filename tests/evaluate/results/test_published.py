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


def test_seventeen_subsets_have_a_warning() -> None:
    seventeen = [subset.name for subset in SEVENTEEN.subsets]
    for labels, manifest in ((seventeen, PILE), (["ArXiv"], SEVENTEEN)):
        [warning] = warnings_on({**PROTOCOL, "labels": labels}, manifest)
        assert "17 of the Pile's 22 subsets" in warning
    assert warnings_on(PROTOCOL, PILE) == ()


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
    on_test = published_beside(
        records_of(shards=["test.jsonl"]), {**PROTOCOL, "paper": True, "prefix": {"id": None}}, PILE
    )
    assert on_test.differs.endswith(
        "Here: 22 documents of test, windows of 512 tokens, the paper's constants, first tokens not predicted."
    )
    assert {column.split for column in on_test.overall} == {"test"}
    assert "DeepSeek-V2" in [column.model for column in on_test.overall]
