"""What is cut is what an earlier document has, by a reference in plain Python; all other bytes stay."""

from __future__ import annotations

import itertools
import json
import random
import re
import tempfile
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit import Corpus, PilekitError, SubstringResult, dedup_corpus, reframe_corpus, substrings_corpus
from pilekit.artifacts.sort.repeated_values import repeated_bytes
from pilekit.artifacts.sort.scratch_files import Scratch
from pilekit.corpus import load_manifest, shard_of
from pilekit.cutting.repeat_cuts import ANCHOR, WINDOW, Scan, find_runs, repeated_anchors
from pilekit.cutting.shards import CutScope
from pilekit.cutting.words import UInt64
from pilekit.shards.corpus_job import Share
from tests.cli.running import cells, run, run_json
from tests.pipeline.making import lines_of
from tests.shards import making
from tests.shards.editing import slow_edit

Cut = tuple[int, int, int, int, int]
"""Document, start, end, the earliest document, and where it holds the longest part."""


def earliest(texts: Sequence[str], length: int) -> list[dict[int, tuple[int, int]]]:
    """Of each text, the windows that an earlier text has: {byte: (earliest text, byte)}."""
    seen: dict[bytes, tuple[int, int]] = {}
    found = []
    for number, text in enumerate(texts):
        data = text.encode()
        windows = [data[at : at + length] for at in range(len(data) - length + 1)]
        found.append({at: seen[window] for at, window in enumerate(windows) if window in seen})
        for at, window in enumerate(windows):
            seen.setdefault(window, (number, at))
    return found


def earliest_by_ranks(texts: Sequence[str]) -> list[dict[int, tuple[int, int]]]:
    """The same for windows of 100 bytes of much text, by sorting: as a suffix array is made, to 64 bytes."""
    encoded = [text.encode() for text in texts]
    data = np.frombuffer(b"".join(encoded), np.uint8)
    begins = np.cumsum([0, *map(len, encoded)])
    eight = np.zeros(len(data) - 7, np.uint64)
    for byte in range(8):
        eight |= data[byte : len(data) - 7 + byte].astype(np.uint64) << np.uint64(8 * byte)
    rank = np.unique(eight, return_inverse=True)[1]
    for size in (8, 16, 32):
        rank = np.unique(rank[:-size] * len(data) + rank[size:], return_inverse=True)[1]
    _, window = np.unique(rank[:-36] * len(data) + rank[36:], return_inverse=True)
    places = np.arange(len(window))
    document = np.searchsorted(begins, places, "right") - 1
    inside = places + 100 <= begins[document + 1]
    first = np.full(int(window.max()) + 1, len(window))
    np.minimum.at(first, window[inside], places[inside])
    earlier = first[window]
    found: list[dict[int, tuple[int, int]]] = [{} for _ in texts]
    for place in np.flatnonzero(inside & (document[np.minimum(earlier, len(window) - 1)] < document)).tolist():
        at, of = int(earlier[place]), int(document[place])
        found[of][place - int(begins[of])] = (int(document[at]), at - int(begins[document[at]]))
    return found


def reference(texts: Sequence[str], length: int, found: Sequence[dict[int, tuple[int, int]]]) -> list[Cut]:
    cuts = []
    for number, (text, held) in enumerate(zip(texts, found, strict=True)):
        runs: list[list[tuple[int, tuple[int, int]]]] = []
        for at, first in sorted(held.items()):
            if not runs or at > runs[-1][-1][0] + length:
                runs.append([])
            runs[-1].append((at, first))
        words = [match.span() for match in re.finditer(r"\S+", text)] if runs else []
        places = [0, *itertools.accumulate(len(character.encode()) for character in text)] if runs else []
        starts, stops = [places[start] for start, _ in words], [places[stop] for _, stop in words]
        for repeats in runs:
            begin, end = repeats[0][0], repeats[-1][0] + length
            inside = words[bisect_left(starts, begin) : bisect_right(stops, end)]
            if inside:
                start, stop = inside[0][0], inside[-1][1]
                parts = [[repeats[0]]]
                for one in repeats[1:]:
                    at, (document, byte) = parts[-1][-1]
                    parts[-1].append(one) if one == (at + 1, (document, byte + 1)) else parts.append([one])
                at, (document, byte) = max(parts, key=len)[0]
                skipped = start - min(start, bisect_left(places, at))
                before = sum(byte & 0xC0 != 0x80 for byte in texts[document].encode()[:byte])
                cuts.append((number, start, stop, document, before + skipped))
    return cuts


def write_shards(folder: Path, shards: Sequence[Sequence[str]]) -> dict[str, list[bytes]]:
    folder.mkdir()
    hard = b'{ "text":{"text":"a"}, "uuid":296336254116318163954371823645001234567,'
    lines = {
        f"{number:02}.jsonl": [making.record(text).replace(b"{", hard, 1) + b" \r" for text in texts]
        for number, texts in enumerate(shards)
    }
    for name, of in lines.items():
        (folder / name).write_bytes(b"".join(line + b"\n" for line in of))
    return lines


def check(found: SubstringResult, shards: Mapping[str, Sequence[bytes]], cuts: Sequence[Cut]) -> None:
    """The table, the counts and the clean shards are those of the cuts. `shards`: the lines of each, in their order."""
    places = [(shard, number) for shard, lines in shards.items() for number in range(len(lines))]
    texts = {place: json.loads(shards[place[0]][place[1]])["text"] for place in places}
    names = ("shard", "number", "start", "end", "first_shard", "first_number", "first_start")
    rows = found.repeats.to_pylist()
    expected = [(*places[number], start, end, *places[first], at) for number, start, end, first, at in cuts]
    assert [tuple(row[name] for name in names) for row in rows] == expected
    spans = defaultdict[Any, list[slice]](list)
    for row in rows:
        spans[row["shard"], row["number"]].append(slice(row["start"], row["end"]))
        assert row["bytes"] == len(texts[row["shard"], row["number"]][spans[row["shard"], row["number"]][-1]].encode())
    counts, removed = Counter[str](), 0
    for shard, lines in shards.items():
        path = found.folder / f"clean/{shard}.zst"
        written = iter(making.unzstd(path).split(b"\n") if path.exists() else [])
        for number, line in enumerate(lines):
            text, of = texts[shard, number], spans[shard, number]
            left = list(text)
            for span in reversed(of):
                del left[span]
            kept = not of or any(character.isalnum() for character in left)
            counts["dropped" if not kept else "cut" if of else "untouched"] += 1
            removed += len(text.encode()) - kept * len("".join(left).encode())
            if kept:
                assert next(written) == (slow_edit(line, "".join(left)) if of else line)
        assert next(written, b"") == b""
    assert {name: found.summary[name] for name in counts} == counts
    assert (found.summary["read"], found.summary["bytes_removed"]) == (len(places), removed)
    most = Counter((row["first_shard"], row["first_number"], row["first_start"]) for row in rows).most_common(10)
    assert [passage["count"] for passage in found.summary["passages"]] == [count + 1 for _, count in most]


@given(
    st.lists(
        st.lists(st.text(st.sampled_from("aaab bé "), max_size=80), min_size=1, max_size=6), min_size=1, max_size=3
    )
)
def test_cuts_are_the_references(shards: list[list[str]]) -> None:
    texts = [text for of in shards for text in of]
    for length in (8, 13):
        with tempfile.TemporaryDirectory() as made:
            lines = write_shards(Path(made) / "data", shards)
            found = substrings_corpus(Path(made) / "data", min_bytes=length, out=Path(made) / "out", jobs=1)
            check(found, lines, reference(texts, length, earliest(texts, length)))


def scan(path: Path, texts: Sequence[str], **settings: Any) -> UInt64:
    """The rows that are written to `path` of a shard of these texts."""
    shard = path.with_name("a.jsonl")
    shard.write_bytes(b"\n".join(map(making.record, texts)))
    scope = CutScope(None, only=False, dedup=None, manifest=load_manifest(), on_error="raise")
    Scan(8, scope, **settings)(shard_of(str(shard)), int, path=path, share=Share(ahead=False, threads=1))
    return np.fromfile(path, np.uint64).reshape(-1, WINDOW if "filter" in settings else ANCHOR)


def full_filter(folder: Path) -> Path:
    """A filter that lets all anchors through."""
    np.save(folder / "filter.npy", np.full(1, np.iinfo(np.uint64).max))
    return folder / "filter.npy"


@given(st.lists(st.text(st.sampled_from("aaab bé "), max_size=80), min_size=1, max_size=6), st.integers(1, 40))
def test_every_window_has_a_row_whatever_the_pieces_of_its_document(texts: list[str], at_a_time: int) -> None:
    with tempfile.TemporaryDirectory() as made:
        path, filter = Path(made) / "rows", full_filter(Path(made))
        rows = scan(path, texts, bases={"a.jsonl": 7}, filter=filter, at_a_time=at_a_time).tolist()
        in_pieces, whole = scan(path, texts, at_a_time=at_a_time), scan(path, texts)
    assert set(map(tuple, in_pieces.tolist())) == set(map(tuple, whole.tolist()))
    windows = [
        (number + 7 << 32 | at, sum(byte & 0xC0 != 0x80 for byte in data[:at]), data[at : at + 8])
        for number, data in enumerate(map(str.encode, texts))
        for at in range(len(data) - 7)
    ]
    assert [tuple(row[2:]) for row in rows] == [window[:2] for window in windows]
    pairs = {(*row[:2], window[2]) for row, window in zip(rows, windows, strict=True)}
    assert len(pairs) == len({pair[:2] for pair in pairs}) == len({pair[2] for pair in pairs})


def test_memory_changes_no_anchor_and_no_run(tmp_path: Path) -> None:
    """In the least memory, a sort holds 1,024 rows, and runs reach from one table into the next."""
    texts, bases = [document(number) for number in range(60)], np.array([0, 60, 120])
    paths = [tmp_path / f"{base}" for base in bases[:2]]
    small, large = (4 * repeated_bytes(sum(len(scan(path, texts)) for path in paths)), 1 << 28)
    filters = [repeated_anchors(paths, int, bases, Scratch(tmp_path, memory)) for memory in (small, large)]
    assert np.array_equal(*filters)
    for path, base in zip(paths, bases.tolist(), strict=False):
        assert len(scan(path, texts, bases={"a.jsonl": base}, filter=full_filter(tmp_path))) > 10_000
    starts = [find_runs(paths, int, bases, tmp_path / f"runs-{n}", Scratch(tmp_path, n)) for n in (1, large)]
    assert starts[0] == starts[1]
    assert starts[0][-1] > starts[0][1] > 0
    assert (tmp_path / "runs-1").read_bytes() == (tmp_path / f"runs-{large}").read_bytes()


RNG = random.Random(11)
WORDS = ["".join(RNG.choices("abcdefghijé", k=RNG.randrange(2, 9))) for _ in range(900)]
LICENCES = [" ".join(RNG.choices(WORDS, k=60)) for _ in range(4)]


def document(number: int) -> str:
    own = [" ".join(RNG.choices(WORDS, k=RNG.randrange(5, 80))) for _ in range(3)]
    licence = LICENCES[number % 4]
    kinds = (own[0], f"{licence}\n{own[0]}", f"{own[0]} {licence[50:]}\n\n{own[1]}{LICENCES[0]}", licence, "=" * 300)
    return kinds[number % len(kinds)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made") / "data"
    folder.mkdir()
    for shard in range(3):
        labels = ("Pile-CC", "Github", "ArXiv")
        records = [{"text": document(number), "meta": {"pile_set_name": labels[number % 3]}} for number in range(40)]
        lines = [json.dumps(record, separators=(" ,", " : ")) + "\n" for record in records]
        (folder / f"{shard:02}.jsonl.zst").write_bytes(making.zstd_frame("".join(lines).encode()))
    return folder


def test_a_corpus_with_licences_is_cut_once_and_for_all(data: Path, tmp_path: Path) -> None:
    lines = lines_of(data)
    texts = [json.loads(line)["text"] for of in lines.values() for line in of]
    found = substrings_corpus(data, out=tmp_path / "one", jobs=1)
    check(found, lines, reference(texts, 100, earliest(texts, 100)))
    assert found.summary["dropped"] > 10 < found.summary["cut"]
    unwritten = substrings_corpus(data, out=tmp_path / "unwritten", write=False)
    assert unwritten.summary == found.summary
    assert {path.name for path in unwritten.folder.iterdir()} == {"pilekit.json", "repeats.parquet", "summary.json"}
    again = substrings_corpus(tmp_path / "one/clean", out=tmp_path / "again")
    assert (again.summary["spans"], again.summary["dropped"]) == (0, 0)


def test_subsets_and_documents_that_a_dedup_removed(data: Path, tmp_path: Path) -> None:
    lines = lines_of(data)
    label = {line: json.loads(line)["meta"]["pile_set_name"] for of in lines.values() for line in of}
    for only in (True, False):
        found = substrings_corpus(data, subsets="github", only=only, out=tmp_path / f"{only}")
        github = {name: [line for line in of if label[line] == "Github"] for name, of in lines.items()}
        texts = [json.loads(line)["text"] for of in github.values() for line in of]
        numbers = [(name, at) for name, of in lines.items() for at, line in enumerate(of) if label[line] == "Github"]
        cuts = [(numbers[cut[0]], *cut[1:3]) for cut in reference(texts, 100, earliest(texts, 100))]
        rows = found.repeats.to_pylist()
        assert [((row["shard"], row["number"]), row["start"], row["end"]) for row in rows] == cuts
        others = {name: [line for line in of if label[line] != "Github"] for name, of in lines.items()}
        clean = lines_of(tmp_path / f"{only}/clean")
        assert found.summary["left_out"] == (sum(map(len, others.values())) if only else 0)
        assert {name: [line for line in of if label.get(line, "Github") != "Github"] for name, of in clean.items()} == (
            {name: [] for name in lines} if only else others
        )
    unique = dedup_corpus(data, out=tmp_path / "unique")
    found = substrings_corpus(data, dedup=tmp_path / "unique", out=tmp_path / "deduplicated")
    assert found.summary["left_out"] == unique.summary["removed"] > 30
    substrings_corpus(tmp_path / "unique/clean", out=tmp_path / "expected")
    assert lines_of(tmp_path / "deduplicated/clean") == lines_of(tmp_path / "expected/clean")
    reframe_corpus(data, tmp_path / "reframed")
    substrings_corpus(tmp_path / "reframed", dedup=tmp_path / "unique", out=tmp_path / "recompressed")
    assert lines_of(tmp_path / "recompressed/clean") == lines_of(tmp_path / "expected/clean")
    (tmp_path / "00.jsonl").write_bytes(lines["00.jsonl"][1] + b"\n")
    with pytest.raises(PilekitError, match="document 0 is not the one that was deduplicated in"):
        substrings_corpus(Corpus(tmp_path / "00.jsonl"), dedup=tmp_path / "unique", out=tmp_path / "other")
    (tmp_path / "00.jsonl").rename(tmp_path / "else.jsonl")
    with pytest.raises(PilekitError, match=r"else\.jsonl: was not deduplicated in"):
        substrings_corpus(Corpus(tmp_path / "else.jsonl"), dedup=tmp_path / "unique", out=tmp_path / "other")


def test_the_command_warns_prints_and_shows_passages(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run("substrings", data, "--out", out, exit_code=0)
    assert "run `pilekit dedup --no-write` first, then give its folder: --dedup dedup" in done.stderr
    found = run_json("substrings", data, "--out", out)
    assert found == json.loads((out / "summary.json").read_bytes())
    rows = cells(done.stdout)
    assert rows[-5][:9] == f"120 read = {found['untouched']} untouched + {found['cut']} cut +".split()
    assert rows[-1] == f"clean shards and repeats.parquet in {out}".split()
    shown = run("duplicates", out, "-n", "2", exit_code=0).stdout
    assert f"1 of 2: {found['passages'][0]['count']} times" in shown
    assert shown.count(found["passages"][0]["text"][:20]) >= 2
    held = run_json("duplicates", out, "-n", "2")[0]["documents"]
    assert len(held) == 10
    first = next(row for row in pq.read_table(out / "repeats.parquet").to_pylist() if row == held[0])
    assert f"cut: {first['shard']} {first['number']}, {first['subset']} from {first['start']} to" in shown
    few = run("duplicates", out, "--min-similarity", "0.9", exit_code=2)
    assert "is for what `pilekit dedup` removed" in few.stderr
    assert "--only needs --subsets" in run("substrings", data, "--only", exit_code=2).stderr
    for options, message in (
        ({"min_bytes": 7}, "min_bytes = 7: must be a whole number from 8 to 65,536"),
        ({"dedup": data}, "was not written by pilekit"),
        ({"out": ""}, "out is empty"),
    ):
        with pytest.raises(PilekitError, match=message):
            substrings_corpus(data, **{"out": tmp_path / "none", **options})
    assert not (tmp_path / "none").exists()


@pytest.mark.slow
def test_real_text_equals_sorted_windows_and_a_second_run_finds_seams_alone(real_corpus: Path, tmp_path: Path) -> None:
    lines = {"part.jsonl": making.unzstd(real_corpus / "minipile-00.jsonl.zst").split(b"\n")[:-1]}
    (tmp_path / "part.jsonl").write_bytes(b"".join(line + b"\n" for line in lines["part.jsonl"]))
    texts = [json.loads(line)["text"] for line in lines["part.jsonl"]]
    found = substrings_corpus(tmp_path / "part.jsonl", out=tmp_path / "out")
    check(found, lines, reference(texts, 100, earliest_by_ranks(texts)))
    assert found.summary["cut"] > 100
    assert found.summary["dropped"] == 0  # so numbers stay
    seams, removed = defaultdict[int, list[int]](list), Counter[int]()
    for row in found.repeats.to_pylist():
        seams[row["number"]].append(row["start"] - removed[row["number"]])
        removed[row["number"]] += row["end"] - row["start"]
    again = substrings_corpus(tmp_path / "out/clean", out=tmp_path / "again")
    assert again.summary["bytes_removed"] < found.summary["bytes_removed"] / 20
    for row in again.repeats.to_pylist():
        assert (
            any(row["start"] - 100 <= seam <= row["end"] + 100 for seam in seams[row["number"]])
            or seams[row["first_number"]]
        )
