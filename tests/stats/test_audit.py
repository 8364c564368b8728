"""`audit_corpus` against plain loops over the standard library's JSON, and the verdicts of each kind of figure."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import audit_corpus, load_tokenizer
from pilekit.corpus import Corpus, load_manifest
from pilekit.stats.audit_result import AuditedFigure
from pilekit.stats.text_copies import run_lengths
from pilekit.stats.text_kernel import count_texts
from tests.cli.running import run, run_json
from tests.memory_limit import NO_HOLES
from tests.refusing import refused
from tests.shards import making
from tests.stats.auditing import every_figure, figure, manifest_of
from tests.tokenize.making import byte_level_bpe

STRING = "aba"


def brute_force(texts: list[str], strings: list[str]) -> dict[str, Any]:
    """Every figure, a text at a time."""
    counts, lengths = Counter(texts), list(map(len, texts))
    frequent = sorted(counts.values(), reverse=True)
    return {
        "documents": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "distinct": len(counts),
        "twins": sum(number for number in counts.values() if number > 1),
        "clusters": sum(number > 1 for number in counts.values()),
        "longest": max(lengths, default=0),
        "shortest": min(lengths, default=0),
        "median": statistics.median(lengths) if lengths else None,
        "length_share": lengths.count(3) / max(1, len(texts)),
        "copies": [*frequent, 0, 0, 0][:3],
        "occurrences": [sum(text.startswith(one, at) for text in texts for at in range(len(text))) for one in strings],
    }


def counted(figures: tuple[AuditedFigure, ...], split: str) -> list[float | None]:
    return [one.counted for one in figures if one.split == split]


texts = st.text(st.sampled_from(["a", "b", "é", "日", "𝄞", "\n", '"']), max_size=9)


@given(shards=st.lists(st.lists(texts, max_size=30), min_size=1, max_size=4), large=st.booleans())
def test_counts_are_those_of_plain_loops(
    tmp_path_factory: pytest.TempPathFactory, shards: list[list[str]], large: bool
) -> None:
    """Read and scanned, in shards of train and of val."""
    folder, strings = tmp_path_factory.mktemp("audited"), [STRING, "é日", "a"]
    by_split: dict[str, list[str]] = {"train": [], "val": []}
    for number, documents in enumerate(shards):
        split = "val" if number == 3 else "train"
        name = "val" if split == "val" else f"{number:02}"
        making.write_shard(folder / f"{name}.jsonl.zst", [*map(making.record, documents), b""])
        by_split[split] += documents
    figures = [one for split in by_split for one in every_figure(strings, split)]
    corpus = Corpus(folder, manifest=manifest_of(folder / "mine.toml", figures))
    audit = audit_corpus(making.as_if_large(corpus) if large else corpus, jobs=1)
    for split, documents in by_split.items():
        if split == "val" and len(shards) < 4:
            assert set(counted(audit.figures, split)) == {None}
            continue
        expected = brute_force(documents, strings)
        wanted = [expected[kind] for kind in list(expected)[:9]] + expected["copies"] + expected["occurrences"]
        found = counted(audit.figures, split)
        if not documents:
            wanted[7], found[7] = None, None  # there is no median
        assert found == pytest.approx(wanted)


@given(st.lists(st.lists(st.integers(0, 4)), max_size=8))
def test_runs_may_span_tables(parts: list[list[int]]) -> None:
    values = sorted(value for part in parts for value in part)
    cuts = pairwise(np.cumsum([0, *map(len, parts)]).tolist())
    tables = [np.array([values[begin:end]], np.uint64) for begin, end in cuts]
    assert np.concatenate([np.zeros(0, np.int64), *run_lengths(tables)]).tolist() == [*Counter(values).values()]


@given(
    several=st.lists(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
        | st.text("aé", max_size=200)
        | st.just("aé" * 1100)
        | st.just(""),
        max_size=12,
    ),
    strings=st.lists(st.text("aé", min_size=1, max_size=4) | st.just("aé" * 40), max_size=4),
    room=st.integers(0, 90),
)
def test_characters_and_occurrences_do_not_cross_texts(several: list[str], strings: list[str], room: int) -> None:
    """Texts and strings of any length beside the 64 bytes that are counted together, with or without memory behind."""
    data = np.frombuffer("".join([*several, "aé" * room]).encode(), np.uint8)
    ends = np.cumsum([len(text.encode()) for text in several], dtype=np.int64)
    sought = np.frombuffer("".join(strings).encode(), np.uint8)
    string_ends = np.cumsum([len(string.encode()) for string in strings], dtype=np.int64)
    characters, occurrences = np.full(len(several), -1), np.arange(len(strings))
    count_texts(data, ends, sought, string_ends, characters, occurrences)
    assert characters.tolist() == [*map(len, several)]
    for place, string in enumerate(strings):
        wanted = sum(text.startswith(string, at) for text in several for at in range(len(text)))
        assert occurrences[place] == place + wanted


def test_processes_clusters_and_tokens_change_nothing(tmp_path: Path) -> None:
    rng, strings = np.random.default_rng(0), [STRING]
    documents = ["".join(rng.choice(list("abé"), rng.integers(0, 9))) for _ in range(900)]
    for number in range(3):
        lines = [*map(making.record, documents[300 * number : 300 * number + 300])]
        making.write_shard(tmp_path / f"{number}.jsonl.zst", [*lines, b"bad"])
    tokenizer = load_tokenizer(byte_level_bpe(300))
    tokens = sum(len(tokenizer.encode_batch([text])[0]) for text in documents)
    figures = [
        *every_figure(strings),
        figure("tokens", tokens, tokenizer="mine", vocabulary=tokenizer.vocab_size),
        figure("tokens", tokens, tokenizer="theirs", vocabulary=5),
        figure("tokens_per_byte", 0.5, tokenizer="mine", vocabulary=tokenizer.vocab_size),
        figure("stated", 7, name="the moon"),
    ]
    manifest = manifest_of(tmp_path / "mine.toml", figures)
    options: Any = {"manifest": str(manifest), "on_error": "skip", "tokenizer": tokenizer}
    alone = audit_corpus(tmp_path, jobs=1, **options)
    assert audit_corpus(tmp_path, jobs=3, **options).to_dict() == alone.to_dict()
    assert alone.skipped.count == 3
    assert alone["train tokens of mine"].verdict == "equal"
    assert alone["train tokens of mine a byte"].counted == tokens / sum(len(text.encode()) for text in documents)
    assert alone["train tokens of theirs"].note == "needs --tokenizer with 5 ids"
    assert (alone["train the moon"].verdict, alone["train the moon"].counted) == ("not counted", None)
    rate, mine = alone["train tokens of mine a byte"].counted or 0, {"tokenizer": "mine", "tolerance": 0.01}
    rates = [figure("tokens_per_byte", rate * more, **mine) for more in (1.009, 1.02)]
    part = audit_corpus(tmp_path, **options | {"manifest": str(manifest_of(tmp_path / "part.toml", rates, 30))})
    assert [row.verdict for row in part.figures] == ["fits", "differs"]
    without = audit_corpus(tmp_path, manifest=str(manifest), on_error="skip")
    assert without["train tokens of mine"].counted is None
    refused("line 301: is not JSON", audit_corpus, tmp_path, manifest=str(manifest))


def verdicts(
    folder: Path, figures: list[dict[str, Any]], shards: int | None = None, **more: Any
) -> list[tuple[str, str]]:
    manifest = manifest_of(folder / "mine.toml", figures, shards, **more)
    return [(one.verdict, one.note) for one in audit_corpus(folder, manifest=str(manifest)).figures]


def test_verdicts_say_how_far_and_what_it_would_mean(tmp_path: Path) -> None:
    making.write_shard(tmp_path / "00.jsonl.zst", [making.record(text) for text in ["aaa", "aaa", "aba", "b" * 9]])
    found = verdicts(
        tmp_path,
        [
            figure("documents", 4),
            figure("documents", 5, difference="a shard is missing"),
            figure("documents", 5, tolerance=0.2),
            figure("bytes", 9),
            figure("occurrences", 0, text=STRING),
            figure("documents", 4, split="test"),
            figure("documents", 3000, variants={"a sample": 44, "another": 1000}, difference="a shard is missing"),
            figure("twins", 100, variants={"a deduplicated corpus": 1}, difference="other subsets"),
            figure("bytes", 1),
        ],
    )
    assert found == [
        ("equal", ""),
        ("differs", "20 % less than published: a shard is missing"),
        ("close", ""),
        ("differs", "100 % more than published"),
        ("differs", "more than published"),
        ("not counted", "no test shard"),
        ("differs", "99.9 % less than published, as in a sample"),
        ("differs", "98 % less than published, as in a deduplicated corpus"),
        ("differs", "18 times what was published"),
    ]


def test_a_part_is_held_to_what_a_part_can_be(tmp_path: Path) -> None:
    """Counts of all shards are left out, bounds and shares hold; documents are known by the release's files."""
    documents = ["x" * (5 if number % 10 else 8) for number in range(400)]
    making.write_shard(tmp_path / "01.jsonl.zst", [*map(making.record, documents)])
    kinds = ["bytes", "distinct", "twins", "clusters"]
    assert verdicts(tmp_path, [figure(kind, 9) for kind in kinds], 30) == [("not counted", "needs all 30 shards")] * 4
    bounds = [
        *(figure("longest", value) for value in (8, 7)),
        *(figure("shortest", value) for value in (5, 6)),
        *(figure("copies", value, rank=1) for value in (360, 359)),
        *(figure("occurrences", value, text="xx") for value in (360 * 4 + 40 * 7, 1700)),
        *(figure("median", value) for value in (5, 8)),
        *(figure("length_share", value, characters=8) for value in (0.13, 0.3)),
    ]
    assert [verdict for verdict, _ in verdicts(tmp_path, bounds, 2)] == ["fits", "differs"] * 6
    files = "[[release.files]]\nname = {}\nfirst_document = {}"
    release = ["[release]", "train_documents = 1000"]
    release += [files.format('"train/00.jsonl.zst"', 0), files.format('"train/01.jsonl.zst"', 600)]
    for first, verdict in ((600, "equal"), (599, "differs")):
        release[-1] = files.format('"train/01.jsonl.zst"', first)
        assert verdicts(tmp_path, [figure("documents", 1000)], 2, lines=release)[0][0] == verdict
    (tmp_path / "01.jsonl.zst").rename(tmp_path / "mine.jsonl.zst")
    assert verdicts(tmp_path, [figure("documents", 1000)], 2, lines=release)[0][1] == "needs all 2 shards"


def test_wrong_figures_are_named(tmp_path: Path) -> None:
    making.write_shard(tmp_path / "00.jsonl.zst", [making.record("a")])
    for wrong, message in (
        (figure("documents", -1), r"mine\.toml: .*value"),
        (figure("document", 1), "figure"),
        (figure("copies", 1), "a figure of kind 'copies' needs `rank`"),
        (figure("tokens_per_byte", 1), "a figure of kind 'tokens_per_byte' needs `tokenizer`"),
        (figure("bytes", 1, rank=2), "a figure of kind 'bytes' has no `rank`"),
        (figure("bytes", 1, tolerance=2), "tolerance"),
        ({"figure": "bytes", "value": 1}, "source"),
        (figure("bytes", 1, other=2), "other"),
    ):
        refused(message, verdicts, tmp_path, [wrong])
    plain = tmp_path / "plain.toml"
    plain.write_text('name = "plain"')
    refused("has no published figures", audit_corpus, tmp_path, manifest=str(plain))


def test_the_command_prints_figures_sources_and_json(tmp_path: Path) -> None:
    making.write_shard(tmp_path / "00.jsonl.zst", [making.record("aaa"), making.record("b")])
    figures = [figure("documents", 3, difference="a shard is missing"), figure("bytes", 4)]
    options = ("stats", tmp_path, "--manifest", manifest_of(tmp_path / "mine.toml", figures), "--audit")
    told = run(*options).stdout
    for part in ("train: documents [1]", "33.3 % less than published: a shard is missing", "[1] a paper"):
        assert part in told
    assert "read 1 shard of train: equal 1, differs 1" in told
    found = run_json(*options)
    assert found["figures"]["train"]["bytes of text"] == {
        "published": 4,
        "counted": 4,
        "verdict": "equal",
        "source": "a paper",
        "note": "",
    }
    for wrong in ("--copies", "--subsets=ArXiv", "--plot=a.png"):
        assert "--audit takes the whole corpus" in run(*options, wrong, exit_code=2).stderr


def test_bundled_figures_are_those_of_the_notes() -> None:
    """The Pile's figures agree with each other, and with what its manifest says elsewhere."""
    manifest = load_manifest("pile")
    values = {(one.split, one.figure): one.value for one in manifest.figures.figures if one.rank in (None, 1)}
    train = {kind: value for (split, kind), value in values.items() if split == "train"}
    assert train["documents"] == manifest.totals.train_documents == manifest.release.train_documents
    assert values["val", "documents"] == manifest.totals.val_documents
    assert train["distinct"] == train["documents"] - train["twins"] + train["clusters"]
    assert train["tokens_per_byte"] == pytest.approx(train["tokens"] / train["bytes"], abs=1e-5)
    fewer = load_manifest("pile-uncopyrighted")
    kept = {subset.name for subset in fewer.subsets}
    held_out = {subset.name: subset.held_out.test_documents or 0 for subset in manifest.subsets}
    left_out = sum(number for name, number in held_out.items() if name not in kept) / manifest.totals.test_documents
    for stated in fewer.figures.figures:
        whole = getattr(manifest.totals, f"{stated.split}_documents")
        assert stated.variants == {"the whole Pile": whole}
        assert abs(stated.value - (1 - left_out) * whole) < stated.tolerance * stated.value
    assert manifest.figures.train_shards == sum(file.first_document is not None for file in manifest.release.files)


SORT = """
import sys
from pathlib import Path
import numpy as np
from pilekit.stats.text_copies import TextCopies
from tests.memory_limit import limit_memory

def sort(documents):
    with TextCopies(Path(sys.argv[1]), 8 << 20, 5) as copies:
        for begin in range(0, documents, 1 << 16):
            values = np.arange(begin, begin + (1 << 16), dtype=np.uint64) // np.uint64(2)
            copies.add(values * np.uint64(0x9E3779B97F4A7C15))
        return copies.counts()

sort(1 << 18)
limit_memory(40 << 20)
print(*sort(1 << 24)[:3])
"""


def test_sorting_takes_the_memory_that_it_was_given(tmp_path: Path) -> None:
    """16.8 million hashes, 134 MB, each twice: 40 MB more than the process has after a small sort are enough."""
    environment = {**os.environ, **NO_HOLES}
    command = [sys.executable, "-c", SORT, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout.split() == [str(1 << 23), str(1 << 24), str(1 << 23)], done.stderr[-2000:]
