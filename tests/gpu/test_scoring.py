"""Scoring on a GPU: the figures and vectors of a CPU, in every precision, and batches that do not fit."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from pilekit import bits_per_byte
from pilekit.evaluate.embed_corpus import embed_corpus
from pilekit.evaluate.embeddings import NULL_VECTORS
from tests.evaluate.documents import write
from tests.evaluate.test_embed_corpus import same, vectors_of
from tests.gpu import needs_gpu
from tests.tiny.masked import roberta_dir
from tests.tiny.models import tiny_corpus, tiny_model_dir

pytestmark = needs_gpu


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"), documents=60)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [("fp32", 1e-5), ("bf16", 1e-2), ("fp16", 1e-2), ("int8", 1e-4), ("int4", 2e-3)]
)
def test_bits_per_byte_are_those_of_a_cpu(model_dir: Path, corpus: Path, dtype: str, tolerance: float) -> None:
    if dtype.startswith("int"):  # the largest weight of an int4 block lies between two steps, and either may be taken
        pytest.importorskip("torchao")
    ours, cpu = (bits_per_byte(model_dir, corpus, dtype=dtype, device=device) for device in ("auto", "cpu"))
    assert ours.protocol["device"].startswith("cuda")
    assert ours.overall.bpb == pytest.approx(cpu.overall.bpb, rel=tolerance)
    assert (ours.overall.tokens, ours.overall.bytes) == (cpu.overall.tokens, cpu.overall.bytes)


def test_a_masked_model_has_the_figures_of_a_cpu(tmp_path: Path, corpus: Path) -> None:
    model = roberta_dir(corpus, tmp_path / "roberta")
    ours, cpu = (bits_per_byte(model, corpus, limit=3, device=device) for device in ("auto", "cpu"))
    assert ours.overall.bpb == pytest.approx(cpu.overall.bpb, rel=1e-5)


@pytest.mark.parametrize("pool", ["mean", "last"])
def test_vectors_are_those_of_a_cpu(model_dir: Path, corpus: Path, tmp_path: Path, pool: str) -> None:
    if int(pa.__version__.split(".")[0]) < NULL_VECTORS:
        write(corpus := tmp_path / "long.jsonl", [("ArXiv", "the quick brown fox " * count) for count in range(1, 40)])
    for device in ("cuda", "cpu"):
        embed_corpus(model_dir, corpus, tmp_path / f"{device}.parquet", pool=pool, float32=True, device=device)
    same(vectors_of(tmp_path / "cuda.parquet"), vectors_of(tmp_path / "cpu.parquet"), tolerance=1e-4)


def test_a_batch_that_the_gpu_cannot_hold_is_scored_in_parts(
    model_dir: Path, corpus: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = bits_per_byte(model_dir, corpus, device="cuda")
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 24 * 2**20) / total)
    try:
        with caplog.at_level(logging.WARNING, "pilekit"):
            parts = bits_per_byte(model_dir, corpus, device="cuda", batch_tokens=2**20)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert any("memory does not hold a forward pass over" in message for message in caplog.messages)
    assert parts.overall.bpb == pytest.approx(whole.overall.bpb, rel=1e-5)
    assert np.isfinite(parts.overall.bpb)
