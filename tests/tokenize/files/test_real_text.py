"""Real text in every format: the ids of `tokenizers`, read by the packages that the formats are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pilekit import TokenFile, tokenize_corpus
from pilekit.artifacts.file_lock import locked
from tests.benchmarks.peers import BENCH, peer_environment
from tests.shards import making
from tests.tokenize.files import readers
from tests.tokenize.files.test_tokenize_corpus import FORMATS, expected_ids

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

# With --no-deps on top of this Python's packages: megatron-core asks for much that its data sets do not import.
REQUIREMENTS = [
    "megatron-core==0.16.1",
    "datatrove==0.10.1",
    "humanize==4.17.0",
    "loguru==0.7.3",
    "dataclasses-json==0.6.7",
    "datasets==5.2.0",
    "dill==0.4.1",
    "multiprocess==0.70.19",
    "pandas==3.1.1",
    "python-dateutil==4.0.0",
    "pytz==2026.6",
    "six==1.17.0",
    "tzdata==2026.6",
]

PACKAGES = """
import sys
import numpy as np
from pilekit import TokenFile
from datasets import load_dataset
from datatrove.utils.dataset import DatatroveFileDataset
from megatron.core.datasets.indexed_dataset import IndexedDataset

folder, cache = sys.argv[1:]
opened = TokenFile(folder + "/megatron/pile")
subsets = opened.documents["subset"].to_pylist()
flat = np.concatenate(list(opened))

index = IndexedDataset(folder + "/megatron/pile_text_document", mmap=True)
assert len(index) == len(opened) == len(index.document_indices) - 1
assert all(map(np.array_equal, (index[number] for number in range(len(index))), opened))

table = load_dataset("parquet", data_files=folder + "/parquet/pile-*.parquet", cache_dir=cache, split="train")
assert all(map(np.array_equal, table.with_format("numpy")["input_ids"], opened))
assert list(table["subset"]) == subsets

by_index, by_token = (
    DatatroveFileDataset(folder + "/ds/pile-00000.ds", 100, 2, True, positions_from_eos_token_id=eos)
    for eos in (None, 0)
)
assert len(by_index) == len(flat) // 101
for number, (one, other) in enumerate(zip(by_index, by_token)):
    assert np.array_equal(one["input_ids"], flat[101 * number : 101 * (number + 1)])
    assert np.array_equal(one["positions"], other["positions"])
    if number == 2000:
        break

assert np.array_equal(np.memmap(folder + "/npy/pile-00000.npy", np.uint16, "r"), flat)
front = np.fromfile(folder + "/llmc/pile_000000.bin", np.uint16, offset=1024)
assert front[0] == flat[-1] == 0
assert np.array_equal(front[1:], flat[:-1])
print("equal")
"""


def test_every_format_is_read_by_the_package_that_it_is_for(tmp_path: Path, real_corpus: Path) -> None:
    """`tokenizers` is slow, so it encodes every third document."""
    shards = [real_corpus / "minipile-00.jsonl.zst", real_corpus / "minipile-01.jsonl.zst"]
    tokenizer = real_corpus / "20B_tokenizer.json"
    for format in FORMATS:
        tokenize_corpus(shards, tmp_path / format / "pile", tokenizer, format=format, append_eod=True)  # type: ignore[arg-type]
    opened = TokenFile(tmp_path / "megatron" / "pile")
    rows = opened.documents
    assert rows is not None
    documents = [
        (shard.name.removesuffix(".zst"), number, text, subset)
        for shard in shards
        for number, text, subset in making.slow_documents(making.unzstd(shard))
        if text
    ]
    found = zip(*(rows[name].to_pylist() for name in ("shard", "number", "subset")), strict=True)
    assert list(found) == [(shard, number, subset) for shard, number, _, subset in documents]
    for index, ids in zip(range(0, len(documents), 3), expected_ids(tokenizer, documents[::3], 0), strict=True):
        assert opened[index].tolist() == ids
    assert readers.megatron(tmp_path / "megatron" / "pile_text_document") == [one.tolist() for one in opened]
    with locked(BENCH / "token-readers.lock"):
        python = peer_environment("token-readers", REQUIREMENTS, ["--no-deps"], on_top=True)
    command = [str(python), "-c", PACKAGES, str(tmp_path), str(tmp_path / "cache")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.endswith("equal\n"), done.stderr[-3000:]
