"""PileStream over token files: the batches of the shards, and what it refuses."""

from __future__ import annotations

import itertools
import json
import os
import random
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from pilekit import Corpus, PilekitError, PileStream, dedup_corpus, load_tokenizer, merge_token_files, tokenize_corpus
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.tokenize.files.token_file import TokenFile
from tests.memory_limit import NO_HOLES
from tests.refusing import refused
from tests.stream.collecting import counted, no_brown_fox, run, steps_of
from tests.stream.conftest import PACKINGS, Settings
from tests.stream.corpora import SUBSETS, Made, made, some_text
from tests.tiny.models import tiny_tokenizer

SCHEDULE = [(0, {"ArXiv": 2, "GitHub": 1}), (4, {"pile_cc": 1, "ArXiv": 0.1})]


@dataclass
class Written:
    """A corpus, and what `tokenize_corpus` made of it: without EOD, with it, with another EOD, in many files."""

    corpus: Made
    prefixes: dict[str, Path]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory, settings: Settings) -> Written:
    """Shards of 200, 0 and 317 documents, with blank and bad lines, and no document without text."""
    folder = tmp_path_factory.mktemp("written")
    changes: dict[str, Any] = {"subsets": [*SUBSETS, "Recipes", None], "text_of": lambda rng: some_text(rng) or "a"}
    corpus = made(folder / "shards", [200, 0, 317], form="single", bad=0.05, **changes)
    ways: dict[str, dict[str, Any]] = {
        "plain": {},
        "eod": {"append_eod": True},
        "other eod": {"append_eod": True, "eod": "<|padding|>"},
        "cut": {"append_eod": True, "tokens_per_file": 2000},
    }
    prefixes = {way: folder / "tokens" / way for way in ways}
    for way, options in ways.items():
        tokenize_corpus(corpus.folder, prefixes[way], settings["tokenizer"], on_error="skip", **options)
    return Written(corpus, prefixes)


@pytest.fixture(scope="module")
def given(settings: Settings) -> Settings:
    return {**settings, "batch_size": 16, "on_error": "skip"}


def places(state: str) -> Any:
    return {name: value for name, value in json.loads(state).items() if name not in ("fingerprint", "sum")}


def test_batches_are_those_of_the_shards(written: Written, given: Settings, tmp_path: Path) -> None:
    folder = written.corpus.folder
    dedup_corpus(Corpus(folder), out=tmp_path / "dedup", write=False, on_error="skip")
    cases: list[Settings] = [
        *({"packing": packing, "append_eod": eod} for packing, eod in itertools.product(PACKINGS, (True, False))),
        {"subsets": ["ArXiv", "GitHub"], "seed": 5},
        {"repeats": {"ArXiv": 2.5, "GitHub": 0.0, "pile_cc": 0.3}, "shuffle": False},
        {"repeats": {"ArXiv": 2.5, "GitHub": 0.0, "pile_cc": 0.3}, "dedup": tmp_path / "dedup"},
        {"dedup": tmp_path / "dedup"},
        *(
            {"weights": SCHEDULE, "ramp": 2, "packing": packing, "append_eod": eod}
            for packing in PACKINGS
            for eod in (True, False)
        ),
        *({"weights": SCHEDULE[1:], "packing": packing, "window": 4} for packing in PACKINGS),
        {"weights": SCHEDULE, "dedup": tmp_path / "dedup"},
    ]
    distinct = set()
    for number, case in enumerate(cases):
        wanted, state = run(folder, {**given, **case}, batches=10)
        distinct.add(str(wanted))
        for way, prefix in ([*written.prefixes.items()] * 2)[number % 4 :][:2]:
            found, ours = run(prefix, {**given, **case}, batches=10)
            assert found == wanted, (way, case)
            assert places(ours) == places(state), (way, case)
    whole = {**given, "lanes": "auto", "epochs": 1}
    assert run(written.prefixes["cut"], whole)[0] == run(folder, whole)[0]
    assert len(distinct) == len(cases)


def test_the_topology_and_a_resume_change_nothing(written: Written, given: Settings) -> None:
    """Two ranks with two workers each, stopped inside a window and resumed as one process, and from other files."""
    wanted, _ = run(written.corpus.folder, given, batches=14)
    split = {**given, "batch_size": 4, "grad_accum": 2, "world_size": 2}
    ranks = [run(written.prefixes["cut"], {**split, "rank": rank}, "loader", 2, 14) for rank in range(2)]
    assert steps_of([batches for batches, _ in ranks], 2) == counted(wanted[:7])
    states = [state for _, state in ranks]
    for way in ("cut", "plain"):
        assert run(written.prefixes[way], given, batches=7, state=states)[0] == wanted[7:], way


def test_peek_weights_and_a_list_of_files(written: Written, given: Settings, tmp_path: Path) -> None:
    folder, prefix = written.corpus.folder, written.prefixes["cut"]
    one, other = (PileStream(data, **given) for data in (folder, prefix))
    assert one.peek(7) == other.peek(7)
    assert one.subset_names == other.subset_names
    shares = {"ArXiv": 0.2, "GitHub": 0.8}
    by_text, by_ids = (PileStream(data, **given, weights=shares).repeats for data in (folder, prefix))
    assert by_ids == pytest.approx(by_text, rel=0.05)
    parts = []
    for shard in written.corpus.shards[0], written.corpus.shards[2]:
        parts.append(tmp_path / shard)
        tokenize_corpus(folder / f"{shard}.zst", parts[-1], given["tokenizer"], on_error="skip")
    shards = sorted(folder.glob("0[02]*.zst"))
    merge_token_files(parts, tmp_path / "merged")
    merge_token_files(prefix, tmp_path / "whole")  # the shard without a document counts in the order
    for ours, theirs in ((parts, shards), (tmp_path / "merged", shards), (tmp_path / "whole", folder)):
        assert run(ours, given, batches=9)[0] == run(theirs, given, batches=9)[0]
    for wrong in ([*parts, parts[0]], [*parts, folder]):
        refused(r"give each file once|is no token file", PileStream, wrong, **given)


def test_states_arguments_and_tokenizers_that_do_not_fit(written: Written, given: Settings, tmp_path: Path) -> None:
    folder, prefix = written.corpus.folder, written.prefixes["plain"]
    for one, other in ((folder, prefix), (prefix, folder)):
        refused(r"does not fit: its shards is .*token files", run, one, given, state=run(other, given, batches=1)[1])
    different = tiny_tokenizer(tmp_path, 290)
    parsed = load_tokenizer(given["tokenizer"].path, special_tokens="parse")
    dedup_corpus(sorted(folder.glob("00*")), out=tmp_path / "dedup", write=False, on_error="skip")
    for case, message in (
        ({"filters": [no_brown_fox]}, "filters judge texts, and a token file has none; give the shards"),
        ({"tokenizer": None}, "tokenizer=None asks for texts"),
        ({"tokenizer": different}, r"its tokenizer is .*tokenizer\.json.*; give the tokenizer that made the ids"),
        ({"tokenizer": parsed}, "its special_tokens is text, .* is parse"),
        ({"dedup": tmp_path / "dedup"}, "was not deduplicated in"),
        ({"subsets": ["ArXif"]}, "ArXiv"),
    ):
        refused(message, PileStream, prefix, **{**given, **case})
    made(tmp_path / "other", [20, 0, 30], form="single", seed=9)
    dedup_corpus(tmp_path / "other", out=tmp_path / "other-dedup", write=False)
    with pytest.raises(PilekitError, match="was not made from the bytes that were deduplicated in"):
        PileStream(prefix, **given, dedup=tmp_path / "other-dedup")


def foreign(stem: Path, documents: Sequence[Sequence[int]], item: int = 2) -> Path:
    """`stem.bin` and `stem.idx` as another tool writes them."""
    sizes = [len(document) for document in documents]
    pointers = [sum(sizes[:at]) * item for at in range(len(sizes))]
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, {2: 8, 4: 4}[item], len(sizes), len(sizes) + 1)
    rest = struct.pack(f"<{len(sizes)}i{2 * len(sizes) + 1}q", *sizes, *pointers, *range(len(sizes) + 1))
    stem.with_suffix(".idx").write_bytes(head + rest)
    stem.with_suffix(".bin").write_bytes(np.array([*itertools.chain(*documents)], {2: "<u2", 4: "<i4"}[item]).tobytes())
    return stem


def test_a_foreign_file(given: Settings, tmp_path: Path) -> None:
    """Without header and table: each document once, with one EOD; every id is checked when it is read."""
    rng = random.Random(0)
    eod = given["tokenizer"].eos_id
    documents = [[rng.randrange(2, 280) for _ in range(rng.randrange(1, 90))] for _ in range(150)]
    half = [[*document, eod] if at % 2 else document for at, document in enumerate(documents)]
    file = foreign(tmp_path / "pile", half)
    whole = {**given, "lanes": "auto", "epochs": 1, "packing": "none", "seq_len": 128}
    for append_eod in (True, False):
        found = {}
        for row in itertools.chain.from_iterable(run(file, {**whole, "append_eod": append_eod})[0]):
            if row.documents:
                ((name, number),) = row.documents
                assert (name, row.subsets[0]) == ("pile", "(none)")
                found[number] = list(row.input_ids[: len(row.doc_ids) - row.doc_ids.count(-1)])
        wanted = [[*document, eod] for document in documents] if append_eod else half
        assert found == {at: ids for at, ids in enumerate(wanted) if len(ids) > 1}
    before, data = run(file, given, batches=9)[0], (tmp_path / "pile.bin").read_bytes()
    (tmp_path / "pile.bin").unlink()
    for number, part in enumerate((data[:4998], data[4998:5004], data[5004:])):
        (tmp_path / f"pile-{number:05}-of-00002.bin").write_bytes(part)
    assert run(file, given, batches=9)[0] == before
    for name, value in {"subsets": ["ArXiv"], "repeats": {"ArXiv": 2}, "weights": {"ArXiv": 1}, "dedup": "x"}.items():
        with pytest.raises(PilekitError, match=rf"{name} needs the table of documents .*documents\.parquet"):
            PileStream(foreign(tmp_path / "bare", documents), **given, **{name: value})
    refused("peek needs the table of documents", PileStream(tmp_path / "bare", **given).peek, 3)
    refused("no document is selected", PileStream, foreign(tmp_path / "empty", []), **given)
    for item, wrong in ((2, 60_000), (4, -1)):
        bad = foreign(tmp_path / f"bad{item}", [*documents, [5, wrong]], item)
        refused(rf"bad{item}\.idx: document 150 has the id", run, bad, given, batches=200)


def test_an_id_that_the_tokenizer_does_not_have_is_refused_under_weights_by_step(
    written: Written, given: Settings, tmp_path: Path
) -> None:
    for path in written.prefixes["plain"].parent.glob("plain_text_document*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    ids, file = tmp_path / "plain_text_document.bin", TokenFile(tmp_path / "plain_text_document.idx")
    table = file.documents
    assert table is not None
    document = table["subset"].to_pylist().index("ArXiv")
    place = 2 * int(file.lengths_of(0, document).sum())
    data = bytearray(ids.read_bytes())
    data[place : place + 2] = (60_000).to_bytes(2, "little")
    ids.write_bytes(data)
    changes = {**given, "weights": SCHEDULE, "packing": "concat"}
    refused(rf"document\.idx: document {document} has the id 60,000", run, tmp_path / "plain", changes, batches=200)


def test_a_table_of_another_file_is_refused(written: Written, given: Settings, tmp_path: Path) -> None:
    stem = "plain_text_document"
    for path in written.prefixes["plain"].parent.glob(f"{stem}*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    table = tmp_path / f"{stem}.documents.parquet"
    table.write_bytes((written.prefixes["plain"].parent / "eod_text_document.documents.parquet").read_bytes())
    for _ in range(2):
        refused("its table of documents does not fit", TokenCorpus, tmp_path / "plain")
        table.write_bytes(table.read_bytes()[:-100])
    table.unlink()
    assert [shard.name for shard in TokenCorpus(tmp_path / "plain").shards] == [stem]


OPENED = """
import sys
from pilekit import PileStream, load_tokenizer
from pilekit.stream.read.token_files import TokenCorpus
from pilekit.stream.settings import StreamSettings
from tests.memory_limit import limit_memory

tokenizer = load_tokenizer(sys.argv[2])
limit_memory(256 << 20)
settings = StreamSettings(sys.argv[1], tokenizer, append_eod=False)
print(TokenCorpus(sys.argv[1]).plan(tokenizer, settings).indexes[0].header.content_hash)
"""


def test_opening_takes_little_memory_whatever_the_documents(given: Settings, tmp_path: Path) -> None:
    """The ids of some documents are in the fingerprint, and these two have 2^25 ids each (zeros, on no disk)."""
    foreign(tmp_path / "long", [])
    sizes = np.array([1 << 25, 1 << 25], "<i4")
    head = b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1)
    places = np.array([0, 2 << 25, 0, 1, 2], "<i8")
    (tmp_path / "long.idx").write_bytes(head + sizes.tobytes() + places.tobytes())
    os.truncate(tmp_path / "long.bin", 4 << 25)
    command = [sys.executable, "-c", OPENED, str(tmp_path / "long"), str(given["tokenizer"].path)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | NO_HOLES, check=False)
    expected = xxhash.xxh3_128()
    for _ in range(1 << 6):
        expected.update(bytes(8 << 20))
    assert done.stdout.strip() == expected.hexdigest(), done.stderr[-2000:]
