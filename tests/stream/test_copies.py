"""Copies as weights: a stream uses documents as often as a plain count of clusters says, in the reference's order.

The reference counts copies by comparing texts, or by the rows of removed.parquet, one by one.
"""

from __future__ import annotations

import json
import math
import random
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, PileStream, dedup_corpus, tokenize_corpus
from pilekit.dedup.cluster_weights import ClusterWeights
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.stream.order.unit_sequence import Sequence as UnitSequence
from pilekit.stream.order.unit_sequence import slots_of
from tests.refusing import refused
from tests.stream.collecting import Way, counted, read_in_turn, run, run_ranks, steps_of
from tests.stream.conftest import Settings
from tests.stream.corpora import Made, made
from tests.stream.reference import Encoder, Line, Plan, Row, lane_documents, optimizer_steps
from tests.stream.schedule_reference import Mixing, scheduled_steps

Place = tuple[str, int]


@dataclass(frozen=True)
class Deduplicated:
    """A corpus, its dedup, its kept documents, and the size of the cluster of each."""

    corpus: Made
    folder: Path
    kept: tuple[Line, ...]
    sizes: Mapping[Place, int]

    def weights(self, power: float, most: int = 100) -> dict[Place, float]:
        """By the definition."""
        return {place: min(float(size) ** power, float(most)) for place, size in self.sizes.items()}


def words(rng: random.Random) -> str:
    """No two of these resemble each other."""
    return " ".join(f"{rng.randrange(10**9)}" for _ in range(rng.randint(3, 12)))


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Deduplicated:
    """Exact copies alone: one text is there about 60 times, some 2 to 20 times, most once."""
    folder = tmp_path_factory.mktemp("copied")
    rng = random.Random(5)
    texts = [words(rng)] * 60 + [text for _ in range(30) for text in [words(rng)] * rng.randint(2, 20)]
    texts += [words(rng) for _ in range(300)]
    rng.shuffle(texts)
    pool = iter(texts)
    corpus = made(folder / "corpus", [250, 1, len(texts) - 251], text_of=lambda _: next(pool))
    dedup_corpus(Corpus(corpus.folder), out=folder / "unique", write=False)
    first: dict[str, Line] = {}
    for line in corpus.lines:
        first.setdefault(line.text, line)
    counts = Counter(line.text for line in corpus.lines)
    kept = tuple(line for line in corpus.lines if first[line.text] is line)
    assert max(counts.values()) >= 60
    return Deduplicated(corpus, folder / "unique", kept, {(one.shard, one.number): counts[one.text] for one in kept})


@pytest.fixture(scope="module")
def steps(encode: Encoder) -> Any:
    """`steps(copied, count, **changes of the plan)`: the reference's steps for `settings`."""

    def steps(of: Deduplicated, count: int, **changes: Any) -> list[list[Row]]:
        usual = {"rows": 8, "columns": 2, "global_batch_size": 16, "seq_len": 64, "window": 16}
        plan = Plan(of.corpus.shards, **{**usual, **changes})
        return optimizer_steps(plan, lambda lane: lane_documents(of.kept, plan, encode, lane), encode.pad_id, count)

    return steps


@pytest.mark.parametrize(
    ("power", "most", "repeats"),
    [(1.0, 100, {}), (0.5, 100, {"ArXiv": 2.5, "Github": 0.0}), (1.0, 7, {"Pile-CC": 0.3}), (0.25, 2, {})],
)
def test_steps_are_the_references_on_any_topology(
    copied: Deduplicated, settings: Settings, steps: Any, power: float, most: int, repeats: dict[str, float]
) -> None:
    """One process, workers, two ranks, accumulation; then chained through states on other ranks and workers."""
    wanted = steps(copied, 24, weights=copied.weights(power, most), repeats=repeats)
    changes = {**settings, "dedup": copied.folder, "copies": power, "copies_max": most, "repeats": repeats}
    folder = copied.corpus.folder
    assert run(folder, {**changes, "batch_size": 16}, batches=24)[0] == wanted
    ways: list[tuple[Way, int, int, int]] = [("loader", 2, 1, 1), ("stock", 3, 1, 2), ("loader", 1, 2, 2)]
    ways += [("iter", 0, 4, 1)]
    step, states = 0, None
    for way, workers, ranks, grad_accum in ways:
        given = {**changes, "batch_size": 16 // ranks // grad_accum, "grad_accum": grad_accum}
        found, states = run_ranks(ranks, folder, given, way, workers, 6 * grad_accum, states)
        assert steps_of(found, grad_accum) == counted(wanted[step : step + 6]), (way, workers, ranks)
        step += 6


@pytest.mark.parametrize("packing", ["best_fit", "concat"])
def test_weights_by_step_count_copies_in_each_subsets_epochs(
    copied: Deduplicated, settings: Settings, encode: Encoder, packing: Any, tmp_path: Path
) -> None:
    """The steps are the reference's on two ranks, after a resume, and from token files."""
    entries = [(0, {"ArXiv": 1.0, "Github": 1.0}), (7, {"Pile-CC": 3.0, "Github": 1.0})]
    usual: Any = {"rows": 8, "columns": 2, "global_batch_size": 16, "seq_len": 64, "window": 16, "packing": packing}
    plan = Plan(copied.corpus.shards, **usual, weights=copied.weights(0.6))
    wanted = scheduled_steps(copied.kept, plan, Mixing(entries, 2), encode, 20)
    changes: Any = {
        **settings,
        "dedup": copied.folder,
        "copies": 0.6,
        "weights": entries,
        "ramp": 2,
        "packing": packing,
    }
    tokenize_corpus(copied.corpus.folder, tmp_path / "tokens", settings["tokenizer"])
    for data in (copied.corpus.folder, tmp_path / "tokens"):
        ranks, saved = run_ranks(2, data, {**changes, "batch_size": 8}, "loader", 1, 9, None)
        assert steps_of(ranks, 1) == counted(wanted[:9])
        state = json.dumps(PileStream.merge_state_dicts([json.loads(one) for one in saved]))
        assert run(data, {**changes, "batch_size": 16}, batches=11, state=state)[0] == wanted[9:]
    stream = PileStream(copied.corpus.folder, **{**changes, "lanes": (1, 1), "batch_size": 16})
    deque(islice(stream, 20), maxlen=0)
    weights = copied.weights(0.6)
    for name, told in stream.explain()["epochs"].items():
        own = [line for line in copied.kept if line.subset == name]
        uses = sum(weights.get((line.shard, line.number), 1.0) for line in own)
        begun = stream.stats()["subsets"][name]["documents"]
        assert told == {"documents": len(own), "epochs": pytest.approx(begun / uses)}
        assert uses > len(own)


def test_no_copies_are_todays_order(copied: Deduplicated, settings: Settings, steps: Any) -> None:
    """copies=0 is the order without it, and its state one of a stream that does not know of copies."""
    given = {**settings, "dedup": copied.folder, "batch_size": 16}
    found, state = run(copied.corpus.folder, {**given, "copies": 0.0}, batches=10)
    assert found == steps(copied, 10)
    assert run(copied.corpus.folder, given, batches=2, state=state)[0] == steps(copied, 12)[10:]
    assert "copies" not in json.loads(state)["fingerprint"]


def uses_of(stream: PileStream) -> Counter[Place]:
    return Counter((one.shard, one.number) for one in stream)  # type: ignore[attr-defined]


@pytest.mark.parametrize("shuffle", [True, False])
def test_all_of_its_copies_give_each_text_as_often_as_before(copied: Deduplicated, shuffle: bool) -> None:
    """With copies=1 and no cap reached, an epoch holds each text as often as the corpus did."""
    text_of = {(line.shard, line.number): line.text for line in copied.corpus.lines}
    before = Counter(text_of.values())
    given: Any = {"tokenizer": None, "epochs": 1, "dedup": copied.folder, "copies": 1.0, "shuffle": shuffle}
    stream = PileStream(copied.corpus.folder, **given)
    after: Counter[str] = Counter()
    for place, uses in uses_of(stream).items():
        after[text_of[place]] += uses
    assert after == before
    assert stream.explain()["uses"] == len(copied.corpus.lines)
    assert f"size of cluster ^ 1, at most 100: {len(copied.corpus.lines):,} uses per epoch" in str(stream.explain())


def test_the_uses_of_epochs_are_the_weights(copied: Deduplicated) -> None:
    """Each document is used floor or ceil of its weight, and over many epochs the weight times; the cap holds."""
    wanted = copied.weights(0.6, 8)
    given: Any = {"tokenizer": None, "dedup": copied.folder, "copies": 0.6, "copies_max": 8}
    epochs = 60
    total: Counter[Place] = Counter()
    for first in range(epochs):
        stream = PileStream(copied.corpus.folder, epochs=1, **given)
        stream.set_epoch(first)
        uses = uses_of(stream)
        assert all(int(weight) <= uses[place] <= -int(-weight // 1) for place, weight in wanted.items())
        total += uses
    planned = sum(wanted.values()) * epochs
    variance = epochs * sum((weight % 1) * (1 - weight % 1) for weight in wanted.values())
    assert abs(sum(total.values()) - planned) < 5 * variance**0.5
    assert stream.explain()["uses"] == pytest.approx(sum(wanted.values()))


def test_near_copies_count_and_those_of_held_out_shards_do_not(tmp_path: Path) -> None:
    """Sizes are a count of the table's rows, one by one; of protected documents and of an earlier corpus they are 1."""
    rng = random.Random(1)
    base = [" ".join(words(rng) for _ in range(8)) for _ in range(20)]

    def text(_: random.Random) -> str:
        chosen = rng.choice(base).split()
        if rng.random() < 0.7:
            chosen[rng.randrange(len(chosen))] = "other"
        return " ".join(chosen)

    corpus = made(tmp_path / "corpus", [40, 60, 50], text_of=text)
    (tmp_path / "corpus" / "02.jsonl.zst").rename(tmp_path / "corpus" / "val.jsonl.zst")
    dedup_corpus(corpus.folder, out=tmp_path / "unique", held_out="protect", write=False)
    rows = pq.read_table(tmp_path / "unique" / "removed.parquet").to_pylist()
    sizes = Counter((row["kept_shard"], row["kept_number"]) for row in rows if row["kept_corpus"] == "this")
    assert {row["kept_corpus"] for row in rows} == {"this", "held-out"}
    assert {row["reason"] for row in rows} == {"exact", "near"}
    found = ClusterWeights(DropDuplicates(tmp_path / "unique"), 1.0).sizes(["00.jsonl", "01.jsonl", "val.jsonl"])
    for shard, of_lines in found.items():
        assert of_lines.tolist() == [1 + sizes[shard, number] for number in range(len(of_lines))]
    assert found["val.jsonl"].max() == 1
    made(tmp_path / "more", [80], text_of=text)
    dedup_corpus(tmp_path / "more", out=tmp_path / "more-unique", against=tmp_path / "unique", write=False)
    rows = pq.read_table(tmp_path / "more-unique" / "removed.parquet").to_pylist()
    assert "against" in {row["kept_corpus"] for row in rows}
    own = Counter(row["kept_number"] for row in rows if row["kept_corpus"] == "this")
    of_lines = ClusterWeights(DropDuplicates(tmp_path / "more-unique"), 1.0).sizes(["00.jsonl"])["00.jsonl"]
    assert of_lines.tolist() == [1 + own[number] for number in range(len(of_lines))]


@given(uses=st.lists(st.floats(0, 9), min_size=1, max_size=12))
def test_slots_are_each_units_copies(uses: list[float]) -> None:
    copies = [max(1, math.ceil(most)) for most in uses]
    wanted = [(copy, unit) for copy in range(max(copies)) for unit in range(len(uses)) if copy < copies[unit]]
    sequence = UnitSequence(len(uses), 1, 1, 0, 1, shuffle=False, slots=slots_of(np.array(uses)))
    found = [sequence.at(position) for position in range(2 * len(wanted))]
    assert [(unit.epoch, unit.copy, unit.unit) for unit in found] == [(e, *slot) for e in (0, 1) for slot in wanted]


def test_token_files_weights_and_subsets(copied: Deduplicated, settings: Settings, tmp_path: Path, steps: Any) -> None:
    """Token files give the batches of their shards; shares of tokens count the copies."""
    tokenize_corpus(copied.corpus.folder, tmp_path / "tokens", settings["tokenizer"])
    given = {**settings, "batch_size": 16, "dedup": copied.folder, "copies": 0.7}
    chosen = {"subsets": ["ArXiv", "GitHub"], "repeats": {"ArXiv": 1.5}}
    by_reference = {"subsets": ("ArXiv", "Github"), "repeats": {"ArXiv": 1.5}}
    wanted = steps(replace_kept(copied, ("ArXiv", "Github")), 10, weights=copied.weights(0.7), **by_reference)
    for data in (copied.corpus.folder, tmp_path / "tokens"):
        assert run(data, {**given, **chosen}, batches=10)[0] == wanted
    shares = {"ArXiv": 0.25, "GitHub": 0.75}
    stream = PileStream(tmp_path / "tokens", **{**given, "lanes": "auto", "epochs": 40}, weights=shares)
    deque(stream, maxlen=0)
    tokens = {name: counts["tokens"] for name, counts in stream.stats()["subsets"].items()}
    assert tokens["ArXiv"] / sum(tokens.values()) == pytest.approx(0.25, abs=0.01)


def replace_kept(of: Deduplicated, subsets: Sequence[str]) -> Deduplicated:
    return replace(of, kept=tuple(line for line in of.kept if line.subset in subsets))


def test_wrong_values_and_places_are_told(copied: Deduplicated, settings: Settings, tmp_path: Path) -> None:
    folder = copied.corpus.folder
    given = {**settings, "batch_size": 16, "dedup": copied.folder}
    refused(r"copies = 0.5 weighs .*; give dedup too", PileStream, folder, **{**given, "dedup": None}, copies=0.5)
    for wrong in (-0.1, 1.5, float("nan"), "1", None):
        refused(r"copies", PileStream, folder, **given, copies=wrong)
    for wrong in (0, -1, 2.5):
        refused(r"copies_max", PileStream, folder, **given, copies=0.5, copies_max=wrong)
    with read_in_turn():
        refused("copies needs random access .*pilekit reframe", PileStream, folder, **given, copies=0.5)
    _, state = run(folder, {**given, "copies": 0.5}, batches=2)
    for changed in ({"copies": 0.25}, {"copies": 0.0}, {"copies": 0.5, "copies_max": 3}):
        stream = PileStream(folder, **given, **changed)  # type: ignore[arg-type]
        refused("state does not fit: its copies is", stream.load_state_dict, json.loads(state))
    made(tmp_path / "other", [30])
    dedup_corpus(tmp_path / "other", out=tmp_path / "unique", write=False)
    theirs = (tmp_path / "unique" / "removed.parquet").read_bytes()
    dedup_corpus(Corpus(folder), out=tmp_path / "mine", write=False)
    (tmp_path / "mine" / "removed.parquet").write_bytes(theirs)
    refused("is of another run than its folder", PileStream, folder, **{**given, "dedup": tmp_path / "mine"}, copies=1)
    (tmp_path / "mine" / "removed.parquet").unlink()
    refused("is not there", PileStream, folder, **{**given, "dedup": tmp_path / "mine"}, copies=1)
    for power, most in ((1.5, 100), (float("nan"), 100), (0.5, 0)):
        with pytest.raises(PilekitError, match="copies"):
            ClusterWeights(DropDuplicates(copied.folder), power, most)


@pytest.mark.parametrize("packing", ["best_fit", "concat", "none"])
def test_copies_count_before_weights_by_step_and_after(
    copied: Deduplicated, settings: Settings, encode: Encoder, packing: Any
) -> None:
    """One order of all documents, with factors, and at a resume weights for later steps."""
    entries = [(5, {"ArXiv": 1.0, "Github": 1.0}), (9, {"Pile-CC": 3.0, "Github": 1.0})]
    usual: Any = {"rows": 8, "columns": 2, "global_batch_size": 16, "seq_len": 64, "window": 16, "packing": packing}
    plan = Plan(copied.corpus.shards, **usual, weights=copied.weights(0.6), repeats={"ArXiv": 1.5})
    wanted = scheduled_steps(copied.kept, plan, Mixing(entries, 2), encode, 20)
    folder, changes = copied.corpus.folder, {**settings, "packing": packing, "dedup": copied.folder, "batch_size": 16}
    changes |= {"copies": 0.6, "repeats": {"ArXiv": 1.5}}
    begun, state = run(folder, changes, batches=4)
    assert begun + run(folder, {**changes, "weights": entries, "ramp": 2}, batches=16, state=state)[0] == wanted
