"""`without` against the reference: the labels of the listed documents are ignored, and nothing else changes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken

from pilekit.errors import PilekitError
from pilekit.stream.pile_stream import PileStream
from pilekit.tokenize import load_tokenizer
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus
from tests.stream.collecting import STEP, counted, read_in_turn, run, run_ranks, steps_of
from tests.stream.conftest import PACKINGS, Corpora, Expected, Settings
from tests.stream.corpora import Made, made, some_text
from tests.stream.reference import Row
from tests.tokenize.making import byte_level_bpe
from tests.train.runs import lines, tiny_run, trainer

Places = list[tuple[str, int]]


def some_documents(corpus: Made, seed: int = 1) -> Places:
    return random.Random(seed).sample([(line.shard, line.number) for line in corpus.lines], len(corpus.lines) // 3)


def without(steps: Sequence[STEP], hides: Callable[[Row, int, int], bool]) -> list[STEP]:
    """The steps, with labels -100 at each place of a row that `hides(row, doc_id, place)`."""
    return [
        [
            row._replace(
                labels=tuple(
                    -100 if document >= 0 and hides(row, document, place) else label
                    for place, (label, document) in enumerate(zip(row.labels, row.doc_ids, strict=True))
                )
            )
            for row in step
        ]
        for step in steps
    ]


def write_list(path: Path, places: Places) -> str:
    path.write_text("".join(json.dumps({"shard": shard, "number": number}) + "\n" for shard, number in places))
    return str(path)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("in_turn", [False, True])
def test_only_labels_of_listed_documents_change(
    corpora: Corpora, settings: Settings, tmp_path: Path, packing: str, in_turn: bool
) -> None:
    corpus = made(tmp_path / "data", [100, 110, 90, 120], form="single") if in_turn else corpora["mixed"]
    places = some_documents(corpus)
    common = {**settings, "packing": packing, "batch_size": 16}
    if in_turn:
        common["lanes"] = (4, 1)
    changes = {**common, "without": write_list(tmp_path / "list.jsonl", places)}
    with read_in_turn(in_turn):
        usual, _ = run(corpus.folder, common, batches=10)
        wanted = without(usual, lambda row, document, place: row.documents[document] in places)
        assert wanted != usual
        assert run(corpus.folder, changes, batches=10)[0] == wanted
        ranks, _ = run_ranks(2, corpus.folder, {**changes, "batch_size": 4, "grad_accum": 2}, "iter", 0, 20)
    assert steps_of(ranks, 2) == counted(wanted)


def test_workers_and_resuming(corpora: Corpora, settings: Settings, expected: Expected, tmp_path: Path) -> None:
    corpus = corpora["mixed"]
    places = some_documents(corpus)
    changes = {**settings, "batch_size": 16, "without": write_list(tmp_path / "list.jsonl", places)}
    wanted = without(expected(corpus, 9), lambda row, document, place: row.documents[document] in places)
    first, state = run(corpus.folder, changes, "loader", 2, 5)
    rest, _ = run(corpus.folder, changes, "stock", 2, 4, state)
    assert first + rest == wanted
    same = {**changes, "without": write_list(tmp_path / "again.jsonl", [*reversed(places), places[0]])}
    assert run(corpus.folder, same, batches=4, state=state)[0] == wanted[5:]
    for other in (None, write_list(tmp_path / "list.jsonl", places[1:])):
        with pytest.raises(PilekitError, match="without"):
            run(corpus.folder, {**changes, "without": other}, batches=1, state=state)


def test_a_subset_a_table_a_trace_and_lines_of_grep(
    corpora: Corpora, settings: Settings, expected: Expected, tmp_path: Path
) -> None:
    corpus, changes = corpora["mixed"], {**settings, "batch_size": 16}
    usual = expected(corpus, 6)
    of_subset = without(usual, lambda row, document, place: row.subsets[place] == "Github")
    assert run(corpus.folder, {**changes, "without": "github"}, batches=6)[0] == of_subset != usual
    places = some_documents(corpus)
    columns = {"shard": [shard for shard, _ in places], "number": [number for _, number in places]}
    pq.write_table(pa.table({**columns, "steps": columns["number"]}), tmp_path / "seen.parquet")
    halves = (places[::2], places[1::2])
    passages = [[{"places": [{"shard": shard, "number": number} for shard, number in half]}] for half in halves]
    pq.write_table(pa.table({"passages": [passages[0], [], passages[1]]}), tmp_path / "traces.parquet")
    (tmp_path / "grep.txt").write_text("".join(f"{shard} {number}  Github  a text\n" for shard, number in places))
    wanted = without(usual, lambda row, document, place: row.documents[document] in places)
    for name in ("seen.parquet", "traces.parquet", "grep.txt"):
        assert run(corpus.folder, {**changes, "without": tmp_path / name}, batches=6)[0] == wanted, name


def test_token_files_and_masked_tokens(settings: Settings, tmp_path: Path) -> None:
    corpus = made(tmp_path / "data", [100, 110], form="single", text_of=lambda rng: some_text(rng) or "a")
    tokenize_corpus(corpus.folder, tmp_path / "tokens" / "pile", settings["tokenizer"])
    places = some_documents(corpus)
    changes = {**settings, "batch_size": 16, "without": write_list(tmp_path / "list.jsonl", places)}
    wanted, _ = run(corpus.folder, changes, batches=6)
    assert run(str(tmp_path / "tokens" / "pile"), changes, batches=6)[0] == wanted
    with_mask = byte_level_bpe(300)
    with_mask.add_special_tokens([AddedToken("<mask>", special=True)])
    with_mask.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(tmp_path / "tokenizer.json")
    masked = {**settings, "batch_size": 16, "objective": "mlm", "tokenizer": tokenizer}
    usual, _ = run(corpus.folder, masked, batches=6)
    hidden, _ = run(corpus.folder, {**masked, "without": changes["without"]}, batches=6)
    assert hidden == without(usual, lambda row, document, place: row.documents[document] in places)


def test_wrong_ones_are_one_line(corpora: Corpora, settings: Settings, tmp_path: Path) -> None:
    folder = corpora["mixed"].folder
    for wrong, message in (
        (write_list(tmp_path / "other.jsonl", [("elsewhere.jsonl", 1)]), "other.jsonl, line 1: names the shard"),
        (tmp_path / "absent.jsonl", "absent.jsonl: is no list of documents"),
        ("Arxif", "Arxif"),
        (write_list(tmp_path / "minus.jsonl", [(corpora["mixed"].shards[0], -1)]), "no shard has a document -1"),
    ):
        with pytest.raises(PilekitError) as raised:
            PileStream(folder, **{**settings, "without": wrong})
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(PilekitError, match="without ignores labels"):
        PileStream(folder, tokenizer=None, without="Github")


def test_a_run_without_documents_is_equal_until_the_first_of_them(tmp_path: Path) -> None:
    """And an empty list changes no bit of the weights."""
    folder = tiny_run(tmp_path, "train.steps = 6")
    trainer(folder, folder / "usual").fit()
    (folder / "none.jsonl").write_text("")
    log = pq.read_table(folder / "usual" / "documents")
    first_steps: dict[tuple[str, int], int] = {}
    for row in log.to_pylist():
        first_steps.setdefault((row["shard"], row["number"]), row["step"])
    place = max(first_steps, key=lambda document: first_steps[document])
    write_list(folder / "one.jsonl", [place])
    for name in ("none", "one"):
        trainer(folder, folder / name, f"data.without = {json.dumps(str(folder / name) + '.jsonl')}").fit()
    weights = [(folder / name / "model" / "model.safetensors").read_bytes() for name in ("usual", "none", "one")]
    assert weights[0] == weights[1] != weights[2]
    usual, hidden = lines(folder / "usual"), lines(folder / "one")
    at = first_steps[place] - 1
    assert usual[:at] == hidden[:at]
    assert usual[at]["loss"] != hidden[at]["loss"]
