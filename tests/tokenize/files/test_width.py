"""The width of ids at its border: every id reads back from every format, and from a merge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

from pilekit import TokenFile, load_tokenizer, merge_token_files, tokenize_corpus
from pilekit.tokenize.files.formats import LIMITS, Format
from tests.shards import making


def ids_in(prefix: Path, format: Format, item: int) -> list[int]:
    kind = f"<u{item}"
    if format == "megatron":
        return [number for ids in TokenFile(prefix) for number in ids.tolist()]
    if format == "parquet":
        return pq.read_table(f"{prefix}-00000.parquet")["input_ids"].combine_chunks().values.to_pylist()
    name, head = (f"{prefix}_000000.bin", 1024) if format == "llmc" else (f"{prefix}-00000.{format}", 0)
    return np.fromfile(name, kind, offset=head).tolist()


@pytest.mark.parametrize("entries", [65_499, 65_500, 65_535, 65_536, 65_537])
def test_every_id_reads_back(tmp_path: Path, entries: int) -> None:
    """EOD is an added token with the largest id."""
    words = {f"w{number}": number for number in range(entries - 1)}
    made = Tokenizer(models.WordLevel(words, unk_token="w0"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    made.save(str(tmp_path / "tokenizer.json"))
    documents = [[0, entries - 2, 1], [min(65_535, entries - 2), 65_498 - 1]]
    lines = [making.record(" ".join(f"w{number}" for number in ids), making.LABELS[0]) for ids in documents]
    (tmp_path / "00.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    tokenizer, item = load_tokenizer(tmp_path / "tokenizer.json"), 2 if entries < 65_500 else 4
    expected = [number for ids in documents for number in (*ids, entries - 1)]
    tokenize_corpus(tmp_path / "00.jsonl", tmp_path / "whole", tokenizer, append_eod=True)
    assert TokenFile(tmp_path / "whole").dtype.itemsize == item
    for format in LIMITS:
        tokenize_corpus(tmp_path / "00.jsonl", tmp_path / format, tokenizer, format=format, append_eod=True)
        merge_token_files(tmp_path / "whole", tmp_path / f"merged-{format}", format=format)
        assert ids_in(tmp_path / f"merged-{format}", format, item) == expected
        front = [number for ids in documents for number in (entries - 1, *ids)]
        assert ids_in(tmp_path / format, format, item) == (front if format == "llmc" else expected)
