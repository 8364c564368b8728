"""Token files of runs that were killed, of a full disk, and of fifty million documents."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from pilekit import Corpus, PilekitError, load_tokenizer, tokenize_corpus
from tests.cli.running import PILEKIT
from tests.memory_limit import NO_HOLES
from tests.small_disk import small_disk
from tests.stopping import kill, stop_when, tree
from tests.tokenize.files.test_tokenize_corpus import FAILING, fails_in_the_last_shard

KILLED = """
import itertools, sys
from pathlib import Path
from tests.kills import in_a_child, kill_at
from tests.stopping import tree
corpus, tokenizer, out, format, step = sys.argv[1:]
from pilekit.tokenize.files.merge import merge_token_files
from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus  # loads no tokenizer, so no threads
def run(place):
    if format == "merge":
        return merge_token_files(sorted((Path(out) / "halves").glob("*.idx")), place / "pile")
    options = {"format": format, "tokens_per_file": 20_000, "append_eod": True, "jobs": 1}
    return tokenize_corpus(corpus, place / "pile", tokenizer, **options)
def halves():
    for shard in Path(corpus).parent.glob(Path(corpus).name):
        tokenize_corpus(shard, Path(out) / "halves" / shard.stem, tokenizer, jobs=1)
assert in_a_child(halves) == 0
whole = Path(out) / "whole"
assert in_a_child(lambda: run(whole)) == 0
expected = tree(whole)
for moment in itertools.count(0, int(step)):
    place = Path(out) / str(moment)
    code = in_a_child(lambda: (kill_at(moment, of=place), run(place)))
    found = tree(place) if place.exists() else {}
    for name, content in found.items():
        if "pile.unfinished" not in name and not name.endswith(".partial"):
            assert content == expected[name], (moment, name)
    if f"pile_text_document.json" in found:
        assert set(expected) <= set(found), moment
    assert in_a_child(lambda: run(place)) == 0, moment
    assert tree(place) == expected, (moment, set(tree(place)) ^ set(expected))
    if code == 0:
        break
    assert code == -9
print(moment)
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("format", "step"), [("megatron", 2), ("parquet", 5), ("merge", 2)])
def test_killed_at_any_file_operation_and_run_again_the_bytes_are_the_same(
    tmp_path: Path, corpus: Path, tokenizer: Path, format: str, step: int
) -> None:
    """Every second operation, and every fifth of a format that is joined as the first one is."""
    arguments = [str(corpus / "0[01].jsonl"), str(tokenizer), str(tmp_path), format, str(step)]
    done = subprocess.run([*PILEKIT[:1], "-c", KILLED, *arguments], check=True, capture_output=True, text=True)
    assert int(done.stdout) > 40


def test_a_killed_command_resumes_and_does_no_finished_shard_again(
    tmp_path: Path, corpus: Path, tokenizer: Path
) -> None:
    tokenize_corpus(corpus, tmp_path / "whole" / "pile", tokenizer)
    command = [*PILEKIT, "tokenize", str(corpus), "--tokenizer", str(tokenizer), "--jobs", "1"]
    for number in count():
        out = tmp_path / str(number)
        joined = out / "pile.unfinished" / "joined" / "pile_text_document.bin"
        code, _ = stop_when([*command, "--out", str(out / "pile")], joined.exists, kill)
        notes = list((out / "pile.unfinished" / ".unfinished").glob("*.json"))
        if code == -signal.SIGKILL and 0 < len(notes) < 4:
            break
        assert number < 20, "was never stopped in the middle"
    before = {path.name: path.read_bytes() for path in notes}
    read: list[int] = []
    tokenize_corpus(corpus, out / "pile", tokenizer, advance=read.append)
    assert tree(out) == tree(tmp_path / "whole")
    assert before
    assert sum(read) == Corpus(corpus).without_held_out().size


def test_what_is_joined_is_not_done_again_unless_its_shard_was_touched(
    tmp_path: Path, corpus: Path, tokenizer: Path
) -> None:
    """A touched shard may have been written to; all from there on is done again."""
    data, loaded = Path(shutil.copytree(corpus, tmp_path / "data")), load_tokenizer(tokenizer)
    sizes = [(data / f"0{number}.jsonl").stat().st_size for number in range(4)]
    for format, touched, done in (
        ("npy", None, 3),
        ("npy", 1, 1),
        ("parquet", None, 3),
        ("parquet", 0, 0),
        ("llmc", 2, 2),
    ):
        options: dict[str, Any] = {"format": format, "tokens_per_file": 20_000, "jobs": 1}
        out = tmp_path / f"{format}{touched}"
        options["stages"] = [fails_in_the_last_shard]
        tokenize_corpus(data, out / "whole" / "pile", loaded, **options)
        FAILING[0] = True
        with pytest.raises(PilekitError, match=r"03\.jsonl: document 0: the function fails_in_the_last"):
            tokenize_corpus(data, out / "again" / "pile", loaded, **options)
        FAILING[0] = False
        assert [path.name for path in (out / "again").iterdir()] == ["pile.unfinished"]
        # Ids of full Parquet files are gone, so that the disk need not hold all of them and the output.
        kinds = Counter(path.suffix for path in (out / "again" / "pile.unfinished" / "joined").iterdir())
        assert kinds[".ids"] == (format == "parquet")
        assert kinds[f".{format}"] > 2 or format == "llmc"
        if touched is not None:
            os.utime(data / f"0{touched}.jsonl")
        (out / "again" / "pile.unfinished" / "joined" / "half.idx").write_bytes(b"left over")
        read: list[int] = []
        tokenize_corpus(data, out / "again" / "pile", loaded, advance=read.append, **options)
        assert read[0] == sum(sizes[:done])
        made, wanted = tree(out / "again"), tree(out / "whole")
        if touched is not None:  # The headers hold the shards' times.
            assert made.pop("pile.json") != wanted.pop("pile.json")
        assert made == wanted


@pytest.mark.slow
def test_a_full_disk_is_one_clear_line_and_the_run_resumes(tmp_path: Path, corpus: Path, tokenizer: Path) -> None:
    tokenize_corpus(corpus, tmp_path / "whole" / "pile", tokenizer)
    size = sum(map(len, tree(tmp_path / "whole").values()))
    with small_disk(tmp_path / "disk", size // 8192 * 4096) as disk:
        command = [*PILEKIT, "tokenize", str(corpus), "--tokenizer", str(tokenizer), "--out", str(disk.path / "pile")]

        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=disk.limit)

        failed = run()
        assert (failed.returncode, failed.stdout) == (1, "")
        [line] = [line for line in failed.stderr.splitlines() if not line.startswith("left out")]
        assert re.match(r"error: .*/pile\.unfinished.*: cannot be written: ", line)
        disk.grow()
        assert run().returncode == 0
        assert tree(disk.path) == tree(tmp_path / "whole")


# The writer and `merge`, in 1 GB beyond the start: two files, and both in one.
MANY = """
import sys
from pathlib import Path
import numpy as np
from pilekit import TokenFile, merge_token_files
from pilekit.corpus import Shard
from pilekit.tokenize.files.token_documents import RECORD, rows_of_records
from pilekit.tokenize.files.formats import token_files
from pilekit.tokenize.files.growing_output import GrowingOutput
from pilekit.tokenize.files.publish import finished_output
from tests.memory_limit import limit_memory

folder, documents = Path(sys.argv[1]), int(sys.argv[2])
PIECE = 1_000_000

def write(name, first, documents):
    files = token_files(folder / name, "megatron", None, "uint16")
    ids, records = folder / f"{name}.ids", folder / f"{name}.records"
    with ids.open("wb") as ids_file, records.open("wb") as records_file:
        for begin in range(0, documents, PIECE):
            piece = np.zeros(PIECE, RECORD)
            piece["number"], piece["tokens"] = np.arange(begin, begin + PIECE), 2
            records_file.write(piece.data)
            ids_file.write((np.arange(2 * (first + begin), 2 * (first + begin + PIECE)) % 60_000).astype("<u2").data)
    def rows():
        return rows_of_records(records, name, ["ArXiv"])
    def make(output, inputs):
        output = GrowingOutput(files, output, {"00": rows}, "tokenizer")
        output.append("00", {}, [ids])
        return output.finish()
    finished_output(files, {"tokenizer": "x"}, [Shard(name, str(ids))], make)
    ids.unlink(), records.unlink()

limit_memory(1 << 30)
try:
    np.empty((3, documents), np.int64)  # three numbers for each document do not fit
except MemoryError:
    write("a", 0, documents)
    write("b", documents, PIECE)
    merged = merge_token_files([folder / "a", folder / "b"], folder / "ab")
    assert merged.summary["documents"] == documents + PIECE
    opened = TokenFile(folder / "ab")
    assert (len(opened), opened.tokens) == (merged.summary["documents"], 2 * merged.summary["documents"])
    for number in (0, 1, documents // 2, documents - 1, documents, documents + PIECE - 1):
        assert opened[number].tolist() == [2 * number % 60_000, (2 * number + 1) % 60_000]
    print("whole")
"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_fifty_million_documents_in_a_gigabyte(tmp_path: Path) -> None:
    command = [*PILEKIT[:1], "-c", MANY, str(tmp_path), "50000000"]
    done = subprocess.run(command, check=False, env=os.environ | NO_HOLES, capture_output=True, text=True)
    assert done.stdout == "whole\n", done.stderr[-2000:]
