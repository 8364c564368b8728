"""`plant` against the reference: rows at the places that the seed draws hold a text each, and no other row changes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from pilekit.corpus.shuffle import mix
from pilekit.errors import PilekitError
from pilekit.stream.batch.plant import PlantedRows
from pilekit.stream.batch.planted_texts import PlantedTexts
from pilekit.stream.order.lane_grid import Grid
from pilekit.stream.pile_stream import PileStream
from pilekit.stream.settings import Planting
from pilekit.tokenize import load_tokenizer
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus
from pilekit.train.config.file import load_config
from pilekit.train.trainer import Trainer
from tests.stream.collecting import ALL, STEP, read_in_turn, rows_of, run, run_ranks
from tests.stream.conftest import PACKINGS, Corpora, Expected, Settings
from tests.stream.corpora import made, record, some_text
from tests.stream.reference import Encoder, Row
from tests.tokenize.making import byte_level_bpe
from tests.train.runs import interrupt_at, lines, tiny_run, trainer

TEXTS = [
    "a canary sings",
    "the quick brown fox <|endoftext|>",
    "12345",
    "läuft über die Straße",
    "日本語",
    "a canary sings",
]
COPIES = [1, 4, 9]
STEPS = 12

Places = dict[int, tuple[str, int]]
"""By step x rows + row in the step: a text, and its line."""


def reference_places(
    entries: Sequence[tuple[Sequence[str], Sequence[int], int, int]], rows: int, seed: int = 0
) -> Places:
    """The places of the texts of (texts, copies, from, to), drawn one after another."""
    places: Places = {}
    for texts, copies, begin, end in entries:
        pending = [(line, text, copy) for line, text in enumerate(texts) for copy in range(copies[line % len(copies)])]
        turn = 0
        while pending:
            failed = []
            for line, text, copy in pending:
                key = xxhash.xxh3_64_intdigest(text.encode())
                place = begin * rows + int(mix(seed, 10, key, copy, turn)) % ((end - begin) * rows)
                if place in places:
                    failed.append((line, text, copy))
                else:
                    places[place] = text, line
            pending, turn = failed, turn + 1
    return places


def planted_row(text: str, line: int, name: str, encode: Encoder, seq_len: int) -> Row:
    tokens = encode(text)
    pads = seq_len - len(tokens)
    return Row(
        ((name, line),),
        tuple(tokens + [encode.pad_id] * pads),
        tuple([-100, *tokens[1:]] + [-100] * pads),
        tuple([*range(len(tokens))] + [0] * pads),
        tuple([0] * len(tokens) + [-1] * pads),
        tuple(["(planted)"] * len(tokens) + [None] * pads),
    )


def with_planted(steps: Sequence[STEP], places: Places, encode: Encoder, name: str = "canary.jsonl") -> list[STEP]:
    """The steps, with the planted rows in place of theirs."""
    rows = len(steps[0])
    assert len(places) > 0
    return [
        [
            planted_row(*places[step * rows + row], name, encode, len(usual.input_ids))
            if step * rows + row in places
            else usual
            for row, usual in enumerate(of_step)
        ]
        for step, of_step in enumerate(steps)
    ]


def write_texts(path: Path, texts: Sequence[str]) -> str:
    path.write_bytes(b"".join(record(text, None) + b"\n" for text in texts))
    return str(path)


@pytest.fixture(scope="module")
def canary(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_texts(tmp_path_factory.mktemp("planted") / "canary.jsonl", TEXTS)


def plan(file: str | Path, **changes: Any) -> list[dict[str, Any]]:
    return [{"file": file, "copies": COPIES, "from": 2, "to": STEPS - 1, **changes}]


PLACES = reference_places([(TEXTS, COPIES, 2, STEPS - 1)], 16)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("in_turn", [False, True])
def test_rows_are_replaced_and_no_other_changes(
    corpora: Corpora, settings: Settings, encode: Encoder, canary: str, tmp_path: Path, packing: str, in_turn: bool
) -> None:
    corpus = made(tmp_path / "data", [100, 110, 90, 120], form="single") if in_turn else corpora["mixed"]
    common = {**settings, "packing": packing, "batch_size": 16}
    if in_turn:
        common["lanes"] = (4, 1)
    changes = {**common, "plant": plan(canary)}
    with read_in_turn(in_turn):
        usual, state = run(corpus.folder, common, batches=STEPS)
        wanted = with_planted(usual, PLACES, encode)
        pairs = zip(chain.from_iterable(usual), chain.from_iterable(wanted), strict=True)
        assert sum(before != after for before, after in pairs) == 2 * sum(COPIES)
        found, planted_state = run(corpus.folder, changes, batches=STEPS)
        assert found == wanted
        assert json.loads(planted_state)["lanes"] == json.loads(state)["lanes"]
        parts = {**changes, "batch_size": 4, "grad_accum": 2}
        ranks, _ = run_ranks(2, corpus.folder, parts, "iter", 0, 2 * STEPS)
    for step in range(STEPS):
        assert Counter(row for rank in ranks for part in rank[2 * step : 2 * step + 2] for row in part) == Counter(
            wanted[step]
        )


def test_workers_resuming_and_peeking(
    corpora: Corpora, settings: Settings, expected: Expected, encode: Encoder, canary: str
) -> None:
    corpus = corpora["mixed"]
    changes = {**settings, "batch_size": 16, "plant": plan(canary)}
    wanted = with_planted(expected(corpus, STEPS), PLACES, encode)
    for way, at in (("loader", 3), ("stock", 7)):
        first, state = run(corpus.folder, changes, way, 2, at)
        rest, _ = run(corpus.folder, changes, "iter", 0, STEPS - at, state)
        assert first + rest == wanted
    _, states = run_ranks(4, corpus.folder, {**changes, "batch_size": 4}, "iter", 0, 5)
    assert run(corpus.folder, changes, "loader", 2, STEPS - 5, states)[0] == wanted[5:]
    stream = PileStream(corpus.folder, outputs=ALL, **changes)
    step = min(PLACES) // 16
    assert stream.peek(step) == [[*map(tuple, row.documents)] for row in wanted[step]]
    assert rows_of(stream.peek_batch(step), stream.subset_names) == wanted[step]
    for other in (None, plan(canary, copies=2), plan(canary, to=STEPS)):
        with pytest.raises(PilekitError, match="its plant is"):
            run(corpus.folder, {**changes, "plant": other}, batches=1, state=state)


def test_counts_are_of_the_rows_that_are_there(corpora: Corpora, settings: Settings, canary: str) -> None:
    """Bad lines too: those before a document whose row is replaced count in the planted row."""
    corpus = corpora["with_bad_lines"]
    stats = {}
    for name, plant in (("usual", None), ("planted", plan(canary))):
        with read_in_turn():
            stream = PileStream(
                corpus.folder,
                **{**settings, "lanes": (2, 1), "batch_size": 16, "on_error": "skip", "plant": plant},
                outputs=ALL,
            )
            batches = [rows_of(batch, stream.subset_names) for batch in islice(stream, STEPS)]
        stats[name] = stream.stats()
        tokens = Counter(subset for batch in batches for row in batch for subset in row.subsets if subset is not None)
        assert {subset: of["tokens"] for subset, of in stats[name]["subsets"].items()} == tokens
    assert stats["usual"]["skipped"] == stats["planted"]["skipped"] > 0
    assert stats["planted"]["subsets"]["(planted)"]["documents"] == 28
    assert stats["planted"]["rows"] == stats["usual"]["rows"]


def test_token_files_masked_tokens_and_without(settings: Settings, encode: Encoder, tmp_path: Path) -> None:
    write_texts(tmp_path / "canary.jsonl", TEXTS)
    corpus = made(tmp_path / "data", [100, 110], form="single", text_of=lambda rng: some_text(rng) or "a")
    tokenize_corpus(corpus.folder, tmp_path / "tokens" / "pile", settings["tokenizer"])
    changes = {**settings, "batch_size": 16, "plant": plan(tmp_path / "canary.jsonl")}
    usual, _ = run(corpus.folder, {**settings, "batch_size": 16}, batches=STEPS)
    wanted = with_planted(usual, PLACES, encode)
    assert run(str(tmp_path / "tokens" / "pile"), changes, batches=STEPS)[0] == wanted
    hidden, _ = run(corpus.folder, {**settings, "batch_size": 16, "without": "Github"}, batches=STEPS)
    assert run(corpus.folder, {**changes, "without": "Github"}, batches=STEPS)[0] == with_planted(
        hidden, PLACES, encode
    )
    with_mask = byte_level_bpe(300)
    with_mask.add_special_tokens([AddedToken("<mask>", special=True)])
    with_mask.save(str(tmp_path / "tokenizer.json"))
    masked = {
        **settings,
        "batch_size": 16,
        "objective": "mlm",
        "tokenizer": load_tokenizer(tmp_path / "tokenizer.json"),
    }
    usual, found = (run(corpus.folder, {**masked, "plant": p}, batches=STEPS)[0] for p in ([], changes["plant"]))
    chosen = 0
    pairs = zip(chain.from_iterable(usual), chain.from_iterable(found), strict=True)
    for place, (before, after) in enumerate(pairs):
        if place not in PLACES:
            assert after == before
            continue
        text, line = PLACES[place]
        assert after.documents == (("canary.jsonl", line),)
        restored = [
            token if label == -100 else label for token, label in zip(after.input_ids, after.labels, strict=True)
        ]
        tokens = encode(text)
        assert restored[: len(tokens)] == tokens
        chosen += sum(label != -100 for label in after.labels)
    assert chosen > 0


@given(
    texts=st.lists(st.sampled_from(["a", "b", "cc", "日本語"]), max_size=6),
    copies=st.lists(st.integers(0, 6), min_size=1, max_size=3),
    begin=st.integers(0, 3),
    steps=st.integers(1, 9),
    rows=st.sampled_from([1, 2, 8]),
    seed=st.integers(-3, 3),
)
def test_places_are_those_of_the_reference(
    texts: list[str], copies: list[int], begin: int, steps: int, rows: int, seed: int
) -> None:
    """Two entries with the same texts: the second takes what the first leaves."""
    keys = np.array([xxhash.xxh3_64_intdigest(text.encode()) for text in texts], np.uint64)
    of_texts, numbers = np.resize(np.array(copies), len(texts)), np.arange(len(texts))
    entries, given_entries = [], []
    for end in (begin + steps, begin + 2 * steps):
        planting = Planting(file="canary.jsonl", copies=copies, begin=begin, end=end)
        ids, offsets = np.zeros(0, np.uint32), np.zeros(len(texts) + 1, np.int64)
        entries.append(
            PlantedTexts(planting, "x/canary.jsonl", "canary.jsonl", 3, numbers, keys, of_texts, ids, offsets)
        )
        given_entries.append((texts, copies, begin, end))
    planted = PlantedRows(entries, 0, True, seed)
    if 2 * of_texts.sum() > steps * rows or 4 * of_texts.sum() > 2 * steps * rows:
        with pytest.raises(PilekitError, match="more than half"):
            planted.places(rows)
        return
    places, table = planted.places(rows)
    wanted = reference_places(given_entries, rows, seed)
    assert dict(zip(places.tolist(), [(texts[text], text) for _, text in table.tolist()], strict=True)) == wanted
    assert places.tolist() == sorted(wanted)


def test_a_text_keeps_its_places_beside_others(tmp_path: Path) -> None:
    few = reference_places([(["a", "b"], [4, 2], 0, 500)], 8)
    more = reference_places([(["a", "b", "c"], [16, 2, 3], 0, 500)], 8)
    assert {place for place, (text, _) in few.items()} <= {place for place, (text, _) in more.items() if text != "c"}


@pytest.mark.parametrize("plan_name", ["random", "sequential"])
def test_rows_of_all_batches_are_the_rows_of_a_step(plan_name: Any) -> None:
    grid = Grid(8, 2, 32, plan_name)
    for world_size in (1, 2, 4):
        for accumulation in grid.accumulations(world_size):
            shares = [grid.share(rank, world_size, accumulation) for rank in range(world_size)]
            for step in range(3):
                numbers = [
                    number
                    for share in shares
                    for part in range(accumulation)
                    for number in share.row_numbers(step * accumulation + part).tolist()
                ]
                assert sorted(numbers) == list(range(32))


def test_wrong_ones_are_one_line(corpora: Corpora, settings: Settings, canary: str, tmp_path: Path) -> None:
    folder = corpora["mixed"].folder
    long = write_texts(tmp_path / "long.jsonl", ["short", "a text that is longer than a row " * 20])
    empty = write_texts(tmp_path / "empty.jsonl", ["short", ""])
    other = write_texts(tmp_path / "canary.jsonl", ["another text"] * 3)
    shard = write_texts(tmp_path / "00.jsonl", ["a text"])
    (tmp_path / "bad.jsonl").write_text('{"meta": {}}\n')
    for wrong, message in (
        (plan(str(tmp_path / "absent.jsonl")), "absent.jsonl"),
        (plan(str(tmp_path / "bad.jsonl")), "bad.jsonl"),
        (plan(str(folder)), "must be one file"),
        (plan("-"), "must be one file"),
        (plan(long), "long.jsonl, line 2: has "),
        (plan(empty), "empty.jsonl, line 2: has 0 tokens"),
        (plan(canary, copies=[1, 2, 3, 4]), "canary.jsonl: has 6 texts, and copies has 4 numbers"),
        (plan(canary, copies=[]), "plant[0].copies = []"),
        (plan(canary, copies=-1), "plant[0].copies = -1"),
        (plan(canary, copies=20), "120 copies in steps 2 to 11 of 16 rows are more than half"),
        (plan(canary) + plan(canary, copies=9), "82 copies in steps 2 to 11 of 16 rows are more than half"),
        (plan(canary, to=2), "from = 2 and to = 2"),
        (plan(canary, to=None), "plant[0].to"),
        ([{"file": canary, "copies": 1}], "plant[0].to is missing"),
        ([{**plan(canary)[0], "step": 1}], 'unknown field of plant[0], "step"'),
        (plan(canary) + plan(other), "another shard has the name canary.jsonl too"),
        (plan(shard, copies=1), "another shard has the name 00.jsonl too"),
        ("canary.jsonl", "plant = "),
    ):
        with pytest.raises(PilekitError) as raised:
            PileStream(folder, **{**settings, "batch_size": 16, "plant": wrong})
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
    with pytest.raises(PilekitError, match="plant makes rows of tokens"):
        PileStream(folder, tokenizer=None, plant=plan(canary))
    with pytest.raises(PilekitError, match="exclude each other"):
        PileStream(folder, **{**settings, "lanes": "auto", "epochs": 1, "plant": plan(canary)})


def test_a_planted_run_is_equal_until_its_first_planted_row(tmp_path: Path) -> None:
    """And an empty list, or a file without texts, changes no bit of the weights."""
    folder = tiny_run(tmp_path, "train.steps = 8")
    (folder / "none.jsonl").write_text("")
    write_texts(folder / "canary.jsonl", ["a canary sings", "twice"])
    plants = {
        "usual": [],
        "no_list": ["data.plant = []"],
        "none": [f'data.plant = [{{file = "{folder}/none.jsonl", copies = 4, to = 8}}]'],
        "canary": [f'data.plant = [{{file = "{folder}/canary.jsonl", copies = [1, 2], from = 3, to = 8}}]'],
    }
    for name, changes in plants.items():
        trainer(folder, folder / name, *changes).fit()
    assert trainer(folder, folder / "resumed", *plants["canary"]).fit(interrupt_at(5)).interrupted
    written = load_config(folder / "resumed" / "config.toml")  # has the keys of the file, "from" and "to"
    Trainer(written, folder / "resumed").fit()
    weights = [(folder / name / "model" / "model.safetensors").read_bytes() for name in [*plants, "resumed"]]
    assert weights[0] == weights[1] == weights[2] != weights[3] == weights[4]
    log = pq.read_table(folder / "canary" / "documents").to_pylist()
    planted = [(row["step"], row["row"], row["number"]) for row in log if row["shard"] == "canary.jsonl"]
    places = reference_places([(["a canary sings", "twice"], [1, 2], 3, 8)], 4)
    assert sorted(planted) == [(place // 4 + 1, place % 4, places[place][1]) for place in sorted(places)]
    usual, changed = lines(folder / "usual"), lines(folder / "canary")
    at = min(planted)[0] - 1
    assert at >= 3
    assert usual[:at] == changed[:at]
    assert usual[at]["loss"] != changed[at]["loss"]
    assert "(planted)" in changed[at]["loss_by_subset"]
