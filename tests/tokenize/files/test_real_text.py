"""Real text in every format: the ids of `tokenizers`, read by the packages that the formats are for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from pilekit import TokenFile, tokenize_corpus
from pilekit.artifacts.file_lock import locked
from pilekit.tokenize.files.formats import LIMITS
from tests.benchmarks.peers import BENCH, peer_environment
from tests.shards import making
from tests.tokenize.files import readers
from tests.tokenize.files.test_tokenize_corpus import expected_ids

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

OLMO_CORE = [
    "ai2-olmo-core==3.0.0",
    "bettermap==1.3.1",
    "boto3==1.44.5",
    "botocore==1.44.5",
    "cached-path==1.8.10",
    "cffi==2.1.1",
    "cryptography==50.0.2",
    "dataclass-extensions==0.5.0",
    "dill==0.4.1",
    "google-api-core==2.44.0",
    "google-auth==2.62.2",
    "google-cloud-core==2.8.0",
    "google-cloud-storage==3.17.1",
    "google-crc32c==1.9.0",
    "google-resumable-media==2.11.0",
    "importlib-resources==7.1.0",
    "jmespath==1.1.0",
    "pandas==3.1.1",
    "proto-plus==1.29.0",
    "s3transfer==0.19.3",
    "python-dateutil==4.0.0",
]

READ_BY_OLMO_CORE = """
import sys
import numpy as np
from olmo_core.data.utils import iter_document_indices
from pilekit import TokenFile

prefix, megatron = sys.argv[1:]
ends = np.cumsum(TokenFile(megatron).lengths)
for by_index in (True, False):
    given = {} if by_index else {"eos_token_id": 0, "dtype": np.uint16}
    found = list(iter_document_indices(prefix + "-00000.npy", use_array_if_local=not by_index, **given))
    assert [end for _, end in found] == ends.tolist()
print("equal")
"""

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
    for format in LIMITS:
        tokenize_corpus(shards, tmp_path / format / "pile", tokenizer, format=format, append_eod=True)
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
    read_by("token-readers", REQUIREMENTS, PACKAGES, tmp_path, tmp_path / "cache")
    files = tmp_path / "npy" / "pile", tmp_path / "megatron" / "pile"
    read_by("olmo-core", OLMO_CORE, READ_BY_OLMO_CORE, *files)


def read_by(name: str, requirements: list[str], script: str, *arguments: object) -> None:
    """Run a script in the environment `name`; it says whether the package read the ids that are in the files."""
    with locked(BENCH / f"{name}.lock"):
        python = peer_environment(name, requirements, ["--no-deps"], on_top=True)
    command = [str(python), "-c", script, *map(str, arguments)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stdout.endswith("equal\n"), done.stderr[-3000:]
