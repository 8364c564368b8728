"""tokens.parquet: every token's bits equal a slow reference and sum to its document's record; kills lose nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from transformers import AutoModelForCausalLM

from pilekit.corpus import Corpus
from pilekit.corpus.sidecar_files import TOKENS_FILE
from pilekit.errors import PilekitError
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.results.result_folder import read_result
from pilekit.shards.read.reader import read_corpus
from pilekit.tokenize import load_tokenizer
from tests.evaluate.documents import write
from tests.evaluate.folders import lines
from tests.evaluate.reference import reference_nll
from tests.tiny.masked import roberta_dir

Rows = dict[tuple[str, int], list[dict[str, Any]]]


def rows_of(out: Path) -> Rows:
    """The rows of each document, in the file's order."""
    found: Rows = {}
    for row in pq.read_table(out / TOKENS_FILE).to_pylist():
        found.setdefault((row["shard"], row["number"]), []).append(row)
    return found


def assert_sums(out: Path) -> None:
    """The losses of each document sum to its record, exactly; documents are in the corpus's order."""
    rows, records = rows_of(out), {(line["shard"], line["document"]): line for line in lines(out)}
    assert list(rows) == sorted(identity for identity, record in records.items() if record["tokens"])
    for identity, of in rows.items():
        nats = [float(np.float32(row["bits"] * math.log(2))) for row in of]
        assert math.fsum(nats) == records[identity]["nll"]
        assert math.fsum(row["bits"] for row in of) * math.log(2) == pytest.approx(math.fsum(nats), rel=1e-14)
        assert len(of) == records[identity]["tokens"]
        assert {row["subset"] for row in of} == {records[identity]["subset"]}


@pytest.mark.parametrize("prefix", ["auto", "none"])
def test_bits_equal_the_reference_token_by_token(model_dir: Path, corpus: Path, tmp_path: Path, prefix: str) -> None:
    result = bits_per_byte(model_dir, corpus, out=tmp_path, per_token=True, prefix=prefix, limit=4)
    assert_sums(tmp_path)
    assert result.overall == bits_per_byte(model_dir, corpus, prefix=prefix, limit=4).overall
    assert read_result(tmp_path).to_dict() == result.to_dict()
    rows, tokenizer = rows_of(tmp_path), load_tokenizer(model_dir)
    model = AutoModelForCausalLM.from_pretrained(model_dir).double().eval()
    first = int(prefix == "none")
    checked = 0
    for batch in read_corpus(Corpus(corpus)):
        for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True):
            if (of := rows.get((batch.shard, number))) is None:
                continue
            ids = tokenizer.encode_batch([text])[0].tolist()
            assert [row["token"] for row in of] == ids[first:]
            assert [row["index"] for row in of] == list(range(first, len(ids)))
            if len(ids) <= 32:  # one window: a token's loss is the difference of two prefixes of the document
                given = 0 if prefix == "auto" else None
                sums = [reference_nll(model, ids[:end], given, 32) for end in range(first, len(ids) + 1)]
                assert [row["bits"] * math.log(2) for row in of] == pytest.approx(np.diff(sums), rel=1e-4, abs=1e-5)
                checked += len(of)
    assert checked > 20


def test_a_masked_model_has_the_bits_of_each_masked_token(corpus: Path, tmp_path: Path) -> None:
    model, out = roberta_dir(corpus, tmp_path / "model"), tmp_path / "out"
    shard = write(tmp_path / "a.jsonl", [("ArXiv", "one two three " * 12), ("Github", ""), ("ArXiv", "four")])
    bits_per_byte(model, shard, out=out, per_token=True)
    assert_sums(out)
    for options, message in (
        ({"out": out, "mlm_sample": 2}, "^per_token needs the losses of all tokens, not of a sample"),
        ({}, "^per_token writes tokens.parquet beside the result; name a folder as out$"),
    ):
        with pytest.raises(PilekitError, match=message):
            bits_per_byte(model, shard, per_token=True, **options)


def test_a_folder_of_the_corpus_may_hold_the_result(model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [("ArXiv", "one two three"), ("Github", "four")])
    found = bits_per_byte(model_dir, tmp_path, out=tmp_path / "scores", per_token=True)
    again = bits_per_byte(model_dir, tmp_path, out=tmp_path / "scores", per_token=True)
    assert again.to_dict() == found.to_dict()
