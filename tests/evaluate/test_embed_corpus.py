"""Vectors equal a plain loop over documents with `transformers`; kills and ranks change none; neighbours are exact."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModel, PreTrainedTokenizerFast

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError
from pilekit.evaluate import embed_corpus as module
from pilekit.evaluate import embeddings
from pilekit.evaluate.embed_corpus import embed_corpus
from pilekit.evaluate.embeddings import Embeddings, write_embeddings
from pilekit.evaluate.results.records import ScoredDocument
from pilekit.shards.read.reader import read_corpus
from tests.evaluate.documents import write
from tests.process_groups import ProcessGroups
from tests.refusing import refused
from tests.tiny.masked import roberta_dir
from tests.tiny.models import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.skipif(
    int(pa.__version__.split(".")[0]) < embeddings.NULL_VECTORS, reason="some documents have no token"
)

Vectors = dict[tuple[str, int], Any]
"""By document; None for a document without a token."""


def vectors_of(path: Path) -> Vectors:
    return {(row["shard"], row["number"]): row["embedding"] for row in pq.read_table(path).to_pylist()}


@torch.no_grad()
def plain_loop(model_dir: Path, corpus: Path, layer: int, pool: str, room: int) -> Vectors:
    """One document at a time, as a user of transformers would write it."""
    model: Any = AutoModel.from_pretrained(model_dir).eval()
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(model_dir / "tokenizer.json"), split_special_tokens=True)
    found: Vectors = {}
    for batch in read_corpus(Corpus(corpus)):
        for number, text in zip(batch.numbers.tolist(), batch.texts, strict=True):
            ids = tokenizer(text, truncation=True, max_length=room, return_tensors="pt").input_ids
            if not ids.numel():
                found[batch.shard, number] = None
                continue
            states = model(input_ids=ids, output_hidden_states=True).hidden_states[layer][0]
            vector = {"mean": states.mean(0), "cls": states[0], "last": states[-1]}[pool]
            found[batch.shard, number] = vector.double().numpy()
    return found


def same(found: Vectors, expected: Vectors, tolerance: float = 1e-5) -> None:
    assert list(found) == list(expected)
    for identity, vector in expected.items():
        if vector is None:
            assert found[identity] is None
        else:
            np.testing.assert_allclose(found[identity], vector, rtol=0, atol=tolerance * np.abs(vector).max())


@pytest.mark.parametrize(("layer", "pool"), [(-1, "mean"), (0, "last"), (1, "mean"), (-2, "last")])
def test_a_causal_model_gives_the_vectors_of_a_plain_loop(
    model_dir: Path, corpus: Path, tmp_path: Path, layer: int, pool: str
) -> None:
    out = tmp_path / "x.parquet"
    found = embed_corpus(model_dir, corpus, out, layer=layer, pool=pool, float32=True, batch_tokens=200)
    expected = plain_loop(model_dir, corpus, layer, pool, 32)
    assert any(vector is None for vector in expected.values())
    same(vectors_of(out), expected)
    assert (len(found), found.width) == (50, 32)
    assert not Path(f"{out}.unfinished").exists()


@pytest.mark.parametrize("pool", ["mean", "cls"])
def test_a_masked_model_gives_the_vectors_of_a_plain_loop(corpus: Path, tmp_path: Path, pool: str) -> None:
    model, out = roberta_dir(corpus, tmp_path / "model"), tmp_path / "x.parquet"
    found = embed_corpus(model, corpus, out, pool=pool, max_length=20)
    same(vectors_of(out), plain_loop(model, corpus, -1, pool, 20), 2e-3)  # float16
    assert str(pq.read_schema(out).field("embedding").type) == f"fixed_size_list<element: halffloat>[{found.width}]"


def embedded(model_dir: Path, corpus: Path, out: Path) -> int:
    return len(embed_corpus(model_dir, corpus, out, float32=True, batch_tokens=100))


def test_any_ranks_resume_with_the_same_vectors(
    process_group: ProcessGroups, model_dir: Path, corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, out, work = tmp_path / "alone.parquet", tmp_path / "x.parquet", tmp_path / "x.parquet.unfinished"
    embedded(model_dir, corpus, alone)
    expected, rng = vectors_of(alone), random.Random(0)
    kept = tmp_path / "kept"
    with monkeypatch.context() as patch:  # killed before the end
        patch.setattr(module, "write_embeddings", lambda *_: shutil.copytree(work, kept))
        with pytest.raises(PilekitError):
            embedded(model_dir, corpus, out)
    for file in kept.glob("records/*/*.jsonl"):
        content = file.read_bytes()
        file.write_bytes(content[: rng.randrange(len(content) // 2, len(content))])
    kept.rename(work)
    assert process_group(2).run(embedded, model_dir, corpus, out) == [50, 50]
    same(vectors_of(out), expected, 1e-4)
    assert not work.exists()
    with monkeypatch.context() as patch:  # finished: no model is loaded
        patch.setattr(module, "load_model", None)
        assert embedded(model_dir, corpus, out) == 50
    with pytest.raises(PilekitError, match="was made with other settings; name another file, or remove it"):
        embed_corpus(model_dir, corpus, out, pool="last", float32=True)


def test_neighbours_are_those_of_all_cosines(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    vectors[11], vectors[40] = 3 * vectors[5], np.nan
    rows = [(ScoredDocument(f"{row % 2}.jsonl", row, 0, "s", 0, 0, 0.0), one) for row, one in enumerate(vectors)]
    found = write_embeddings(tmp_path / "x.parquet", rows, 8, np.float32, {}, group_bytes=4 * 8 * 7)  # seven rows
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = np.nan_to_num(unit @ unit[5])
    expected = [row for row in np.argsort(-cosines, kind="stable").tolist() if row != 5][:9]
    near = found.near("1.jsonl", 5, 9)
    assert [one["number"] for one in near] == expected
    assert near[0]["number"] == 11
    assert [one["similarity"] for one in near] == pytest.approx(cosines[expected], abs=1e-6)
    assert len(found.near("1.jsonl", 5, 100)) == 59
    for shard, number, message in (
        ("1.jsonl", 6, "has no document 6 of 1.jsonl; its shards are 0.jsonl, 1.jsonl"),
        ("1.jsonl", 10**20, "has no document 1"),
        ("0.jsonl", 40, "has no token"),
    ):
        refused(message, found.near, shard, number)


def test_what_is_wrong_is_one_line(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    (tmp_path / "text.parquet").write_text("text")
    for options, message in (
        ({"layer": 3}, "^layer is 3, but the model has the layers 0 to 2, or -1 to -3$"),
        ({"pool": "cls"}, "cls with a special token before each text: this tokenizer puts no special token before"),
        ({"pool": "max"}, "^pool is mean, last, or cls"),
        ({"out": tmp_path / "text.parquet"}, "text.parquet: is no file of embeddings, as `pilekit embed` writes"),
    ):
        refused(message, embed_corpus, model_dir, corpus, **{"out": tmp_path / "x.parquet", **options})
    refused("there is no such file", Embeddings, tmp_path / "none.parquet")
    (tmp_path / "x.parquet.unfinished").symlink_to("nowhere")
    refused("x.parquet.unfinished: is a link", embed_corpus, model_dir, corpus, out=tmp_path / "x.parquet")
    (tmp_path / "x.parquet.unfinished").unlink()
    assert [path.name for path in tmp_path.iterdir()] == ["text.parquet"]


def test_vectors_among_the_shards_are_named(model_dir: Path, tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [("ArXiv", "one two three")])
    embed_corpus(model_dir, tmp_path, tmp_path / "x.parquet")
    message = 'x.parquet: has no column "text"; it is a table about documents, as of `pilekit embed`; move it out of'
    refused(message, embed_corpus, model_dir, tmp_path, tmp_path / "other.parquet")


def test_a_vector_too_large_for_float16_is_refused(corpus: Path, tmp_path: Path) -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.gpt_neox.final_layer_norm.weight, 1e6)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer(tmp_path / "model")
    out = tmp_path / "x.parquet"
    message = r"00\.jsonl, document \d+: its vector has numbers too large for float16; add --float32"
    refused(message, embed_corpus, tmp_path / "model", corpus, out)
    assert len(embed_corpus(tmp_path / "model", corpus, out, float32=True)) == 50


def test_a_vector_that_is_not_finite_is_not_called_a_loss(corpus: Path, tmp_path: Path) -> None:
    model = tiny_model()
    torch.nn.init.constant_(model.gpt_neox.final_layer_norm.weight, torch.nan)
    model.save_pretrained(tmp_path / "model")
    tiny_tokenizer(tmp_path / "model")
    message = r"00\.jsonl, document \d+ \(\w+\): the model's hidden state is nan, not a finite number; its weights"
    refused(message, embed_corpus, tmp_path / "model", corpus, tmp_path / "x.parquet")


def test_null_vectors_need_a_pyarrow_that_stores_them(tmp_path: Path) -> None:
    row = ScoredDocument("a.jsonl", 7, 0, "s", 0, 0, 0.0), np.full(8, np.nan)
    message = r"document 7: has no token, and pyarrow .* cannot store .*install pyarrow 999"
    refused(message, write_embeddings, tmp_path / "x", [row], 8, np.float32, {}, null_vectors=999)
    assert not (tmp_path / "x").exists()


def test_a_damaged_file_is_named(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    embedded(model_dir, corpus, out := tmp_path / "x.parquet")
    content = bytearray(whole := out.read_bytes())
    content[4:2000] = bytes(1996)
    out.write_bytes(content)
    refused(r"x\.parquet: cannot be read: .*; remove it, and embed again", Embeddings(out).near, "00.jsonl", 3)
    table = pq.read_table(pa.BufferReader(bytes(whole)))
    for changed in (table.drop_columns("number"), table.rename_columns(["shard", "subset", "number", "embedding"])):
        pq.write_table(changed, out)
        refused("is no file of embeddings", Embeddings, out)
