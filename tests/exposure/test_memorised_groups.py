"""`memorised` counts sequences by copies and by exposure as a plain loop does over its file, a dedup and a run."""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import Result

from pilekit import dedup_corpus, read_corpus, seen, tokenize_corpus
from pilekit.evaluate.results.memorised_groups import GROUPS
from pilekit.exposure.memorised import memorised
from tests.cli.running import run as pilekit
from tests.evaluate.documents import write
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.train.runs import tiny_run, trainer, warnings_of

STEPS = 12
CHANGES = (f"train.steps={STEPS}", "data.packing=concat", "data.seq_len=16")
SHORT: dict[str, Any] = {"prompt": 3, "continuation": 2, "every": 4}

Place = tuple[str, int]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with its log and one without, a dedup of their data, and `data/val.jsonl`, which neither reads."""
    made = tiny_run(tmp_path_factory.mktemp("known"), documents=40)
    texts = [f"{word} the quick brown fox, 12345 def f(x):" * 3 for word in ("one", "two", "three")]
    write(made / "data/val.jsonl", [("ArXiv", text) for text in texts])
    for name, logged in (("logged", "true"), ("unlogged", "false")):
        trainer(made, made / name, *CHANGES, f"log.documents={logged}").fit()
    dedup_corpus(made / "data", made / "unique", write=False, jobs=1)
    return made


@pytest.fixture(scope="module")
def whole(made: Path) -> tuple[Any, list[dict[str, Any]]]:
    """The result with both, and the rows of its file."""
    result = memorised(
        *(made / "logged/model", made / "data"),
        **SHORT,
        copies=made / "unique",
        seen=made / "logged",
        out=made / "out",
    )
    return result, pq.read_table(made / "out/sequences.parquet").to_pylist()


def counted(made: Path, out: Path | None) -> dict[str, Any]:
    joined = {"copies": made / "unique", "seen": made / "logged"}
    return memorised(made / "logged/model", made / "data", **SHORT, **joined, out=out).to_dict()


def test_rows_have_the_copies_and_steps_that_plain_loops_count(
    made: Path, whole: tuple[Any, list[dict[str, Any]]]
) -> None:
    _, rows = whole
    places = [(document.shard, document.number) for batch in read_corpus(made / "data") for document in batch]
    removed = pq.read_table(made / "unique/removed.parquet").to_pylist()
    kept_of = {(row["shard"], row["number"]): (row["kept_shard"], row["kept_number"]) for row in removed}
    clusters = defaultdict[Place, list[Place]](list)
    for place in places:
        clusters[kept_of.get(place, place)].append(place)
    trained = [place for place in places if place[0] != "val.jsonl"]
    exposures = {(row["shard"], row["number"]): row for row in seen(made / "logged", trained).rows.to_pylist()}
    assert len(rows) > 100
    for row in rows:
        place = row["shard"], row["number"]
        cluster = clusters[kept_of.get(place, place)]
        its = [exposures[copy] for copy in cluster if copy in exposures]
        steps = [step for copy in its for step in copy["steps"]]
        assert row["copies"] == (None if place[0] == "val.jsonl" else len(cluster))
        assert row["times_seen"] == sum(copy["times"] for copy in its)
        assert row["steps_since_seen"] == (STEPS - max(steps) if steps else None)
    assert {row["copies"] for row in rows} >= {None, 1, 2}
    assert {row["times_seen"] for row in rows} >= {0, 1}


def test_groups_are_the_counts_of_the_rows(made: Path, whole: tuple[Any, list[dict[str, Any]]]) -> None:
    result, rows = whole
    assert list(result.groups) == ["copies", "times_seen", "steps_since_seen"]
    for by, classes in result.groups.items():
        expected = defaultdict[str, list[dict[str, Any]]](list)
        for row in rows:
            expected[_class(by, row[by])].append(row)
        shares = {name: share for name, share in classes.items() if share.sequences}
        assert shares.keys() == expected.keys()
        for name, of_class in expected.items():
            share = classes[name]
            assert share.sequences == len(of_class)
            assert share.memorised == sum(row["run"] == 2 for row in of_class)
            assert share.right_tokens == sum(row["right"] for row in of_class)
            assert share.documents - share.too_short == len({(row["shard"], row["number"]) for row in of_class})
        assert sum(share.documents for share in classes.values()) == result.overall.documents
        assert list(classes) == sorted(classes, key=GROUPS[by].place)
    assert list(result.groups["copies"])[-1] == "not compared"
    assert list(result.groups["steps_since_seen"])[-1] == "never"


def _class(by: str, value: int | None) -> str:
    if by == "steps_since_seen":
        return "never" if value is None else "0-9" if value < 10 else "10-29"
    if value is None:
        return "not compared"
    return next(name for name in _DOUBLING if value <= int(name.split("-")[-1]))


_DOUBLING = ("0", "1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65-128")


def test_any_ranks_and_a_replayed_run_give_the_same(
    process_group: ProcessGroups, made: Path, whole: tuple[Any, list[dict[str, Any]]], tmp_path: Path
) -> None:
    expected = whole[0].to_dict()
    assert process_group(2).run(counted, made, None) == [expected, expected]
    joined = {"copies": made / "unique", "seen": made / "unlogged"}
    with warnings_of() as warnings:
        replayed = memorised(made / "logged/model", made / "data", **SHORT, **joined)
    assert any("12 steps are not logged" in warning.getMessage() for warning in warnings)
    assert replayed.to_dict()["groups"] == expected["groups"]
    assert replayed.protocol["seen"]["replayed"] == [[1, STEPS]]


def test_a_finished_result_is_joined_without_scoring_again(
    made: Path, whole: tuple[Any, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pilekit.exposure import memorised as module

    alone = memorised(made / "logged/model", made / "data", **SHORT, out=tmp_path / "out")
    assert alone.groups == {}
    assert "copies" not in pq.read_schema(tmp_path / "out/sequences.parquet").names
    monkeypatch.setattr(module, "load_causal_lm", None)
    assert counted(made, tmp_path / "out") == whole[0].to_dict()
    assert pq.read_table(tmp_path / "out/sequences.parquet").to_pylist() == whole[1]


def test_shards_are_known_by_their_content(made: Path, whole: tuple[Any, list[dict[str, Any]]], tmp_path: Path) -> None:
    """The scored folder calls its shards otherwise than dedup and run do."""
    shutil.copytree(made / "data", tmp_path / "above/train")
    (tmp_path / "above/train/val.jsonl").unlink()
    model, joined = made / "logged/model", {"copies": made / "unique", "seen": made / "logged"}
    other = memorised(model, tmp_path / "above", **SHORT, **joined)
    same = memorised(model, [made / "data/00.jsonl.zst", made / "data/01.jsonl.zst"], **SHORT, **joined)
    assert {shard["name"] for shard in other.protocol["data"]} == {"train/00.jsonl", "train/01.jsonl"}
    assert other.groups == same.groups
    assert "not compared" not in other.groups["copies"]


def test_a_dedup_or_run_of_another_corpus_is_refused(made: Path, tmp_path: Path) -> None:
    model, data = made / "logged/model", made / "data"
    write(tmp_path / "other/00.jsonl", [("ArXiv", "another text")])
    dedup_corpus(tmp_path / "other", tmp_path / "other-unique", jobs=1)
    same_name = "other-unique: is no dedup of the scored data: it has read another 00.jsonl than is scored; run `pile"
    refused(same_name, memorised, model, data, **SHORT, copies=tmp_path / "other-unique")
    none = "unique: is no dedup of the scored data: it has read none of the scored shards, but 00.jsonl, 01"
    refused(none, memorised, model, data / "val.jsonl", **SHORT, copies=made / "unique")
    other = "logged: is no run on the scored data: it has read another 00.jsonl than is scored; score shards that"
    refused(other, memorised, model, tmp_path / "other", **SHORT, seen=made / "logged")
    dedup_corpus(data / "01.jsonl.zst", tmp_path / "more", against=tmp_path / "other-unique", jobs=1)
    against = "more: was made against an earlier dedup, so it has not all copies; run `pilekit dedup` on all shards at"
    refused(against, memorised, model, data, **SHORT, copies=tmp_path / "more")
    refused("there is no such folder", memorised, model, data, **SHORT, copies=tmp_path / "nowhere")
    refused("there is no such folder", memorised, model, data, **SHORT, seen=tmp_path / "nowhere")
    refused('holds a "dedup"|is the header of kind', memorised, model, data, **SHORT, seen=made / "unique")


def test_without_a_dedup_exposure_is_that_of_the_document_alone(made: Path, tmp_path: Path) -> None:
    result = memorised(made / "logged/model", made / "data", **SHORT, seen=made / "logged", out=tmp_path / "out")
    rows = pq.read_table(tmp_path / "out/sequences.parquet").to_pylist()
    trained = {(row["shard"], row["number"]) for row in rows if row["shard"] != "val.jsonl"}
    exposures = {(row["shard"], row["number"]): row for row in seen(made / "logged", trained).rows.to_pylist()}
    for row in rows:
        its = exposures.get((row["shard"], row["number"]), {"times": 0, "steps": []})
        since = STEPS - its["steps"][-1] if its["steps"] else None
        assert (row["times_seen"], row["steps_since_seen"]) == (its["times"], since)
    assert not result.protocol["seen"]["with_copies"]
    assert list(result.groups) == ["times_seen", "steps_since_seen"]


def test_a_run_on_token_files_is_known_by_the_shards_that_they_were_made_of(made: Path, tmp_path: Path) -> None:
    tokenize_corpus(made / "data", tmp_path / "all", tokenizer=made / "tokenizer", jobs=1)
    trainer(made, tmp_path / "run", *CHANGES, f"data.path={tmp_path / 'all'}").fit()
    model, scored = made / "logged/model", [made / "data/01.jsonl.zst", made / "data/val.jsonl"]
    result = memorised(model, scored, **SHORT, seen=tmp_path / "run", out=tmp_path / "out")
    rows = pq.read_table(tmp_path / "out/sequences.parquet").to_pylist()
    places = {(row["shard"], row["number"]) for row in rows if row["shard"] == "01.jsonl"}
    exposures = {(row["shard"], row["number"]): row["times"] for row in seen(tmp_path / "run", places).rows.to_pylist()}
    assert [row["times_seen"] for row in rows] == [exposures.get((row["shard"], row["number"]), 0) for row in rows]
    assert any(exposures.values())
    assert result.protocol["seen"]["not_read"] == ["val.jsonl"]
    for path in tmp_path.glob("all*"):
        if not path.name.endswith((".bin", ".idx")):
            path.unlink()
    message = "was trained on token files that do not name their shards; make them by `pilekit tokenize`"
    refused(message, memorised, model, scored, **SHORT, seen=tmp_path / "run")


def test_held_out_documents_that_a_dedup_protects_are_compared(made: Path, tmp_path: Path) -> None:
    """A copy of a val document is among the training documents."""
    shutil.copytree(made / "data", tmp_path / "data")
    (first, *_) = (tmp_path / "data/val.jsonl").read_text().splitlines()
    (tmp_path / "data/02.jsonl").write_text(first + "\n")
    dedup_corpus(tmp_path / "data", tmp_path / "unique", held_out="protect", write=False, jobs=1)
    options = {**SHORT, "out": tmp_path / "out", "copies": tmp_path / "unique"}
    result = memorised(made / "logged/model", tmp_path / "data", **options)
    rows = pq.read_table(tmp_path / "out/sequences.parquet").to_pylist()
    known = {(row["shard"], row["number"]): row["copies"] for row in rows if row["shard"] in ("val.jsonl", "02.jsonl")}
    assert known[("val.jsonl", 0)] == known[("02.jsonl", 0)] >= 2
    assert None not in known.values()
    assert result.protocol["copies"]["not_compared"] == []


def test_subsets_that_were_not_compared_have_no_copies(made: Path, tmp_path: Path) -> None:
    dedup_corpus(made / "data", tmp_path / "some", subsets=["ArXiv"], write=False, jobs=1)
    result = memorised(made / "logged/model", made / "data", **SHORT, copies=tmp_path / "some")
    others = sum(share.documents for name, share in result.subsets.items() if name != "ArXiv")
    assert result.groups["copies"]["not compared"].documents == others + 3
    assert result.protocol["copies"] == {
        "folder": str(tmp_path / "some"),
        "threshold": 0.8,
        "subsets": ["ArXiv"],
        "not_compared": ["val.jsonl"],
    }


def test_the_command_prints_and_draws_all_groups(
    made: Path, whole: tuple[Any, list[dict[str, Any]]], tmp_path: Path
) -> None:
    options = ("--prompt", "3", "--continuation", "2", "--every", "4")
    joined = ("--copies", made / "unique", "--seen", made / "logged")
    shown: Result = pilekit(
        "memorised",
        made / "logged/model",
        made / "data",
        *options,
        *joined,
        "--plot",
        tmp_path / "groups.svg",
        exit_code=0,
    )
    for words in ("Copies", "not compared", "Times", "Steps since", "never"):
        assert words in shown.stdout
    text = " ".join(shown.stdout.split())
    assert "exact and near copies, from a similarity of 0.8 on; without val.jsonl" in text
    assert f"steps 1 to {STEPS}; does not read val.jsonl" in text
    assert "<svg" in (tmp_path / "groups.svg").read_text()
    printed = pilekit("memorised", made / "logged/model", made / "data", *options, *joined, "--json", exit_code=0)
    assert json.loads(printed.stdout) == whole[0].to_dict()
    assert "never" in str(whole[0])
    assert whole[0]._repr_html_().count("<table>") == 4
