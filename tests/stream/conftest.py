"""Corpora and the reference's steps, made once for all tests of the stream's guarantees."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pilekit.tokenize import load_tokenizer
from tests.stream.corpora import Made, few, mixed, uneven, with_bad_lines
from tests.stream.reference import Encoder, Plan, Row, lane_documents, optimizer_steps
from tests.tiny.models import tiny_tokenizer

PACKINGS = ["best_fit", "concat", "none"]

Corpora = dict[str, Made]
Settings = dict[str, Any]
Expected = Callable[..., list[list[Row]]]


@pytest.fixture(scope="session", autouse=True)
def workers_end_at_once() -> Iterator[None]:
    """torch waits up to five seconds for each DataLoader worker that has batches left to send."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
        yield


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def encode(tokenizer_file: Path) -> Encoder:
    return Encoder(tokenizer_file)


@pytest.fixture(scope="session")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    """By the names of the functions that make them."""
    folder = tmp_path_factory.mktemp("corpora")
    return {make.__name__: make(folder / make.__name__) for make in (mixed, uneven, few, with_bad_lines)}


@pytest.fixture(scope="session")
def settings(tokenizer_file: Path) -> dict[str, Any]:
    """The settings of the guarantee tests, with a global batch of 16."""
    return {"seq_len": 64, "lanes": (8, 2), "window": 16, "tokenizer": load_tokenizer(tokenizer_file)}


@pytest.fixture(scope="session")
def expected(encode: Encoder) -> Expected:
    """`expected(made, steps, **changes of the plan)`: the reference's steps for `settings`."""

    def expected(made: Made, steps: int, **changes: Any) -> list[list[Row]]:
        usual = {"rows": 8, "columns": 2, "global_batch_size": 16, "seq_len": 64, "window": 16}
        plan = Plan(made.shards, **{**usual, **changes})
        return optimizer_steps(plan, lambda lane: lane_documents(made.lines, plan, encode, lane), encode.pad_id, steps)

    return expected
