"""From `[data]` to a stream: every field reaches it, each rank gets its share, and errors name the field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from pilekit.errors import PilekitError
from pilekit.stream.order.lane_grid import divisors
from pilekit.train.config.sections import DataConfig, ModelConfig, TrainConfig, TrainSection
from pilekit.train.data import open_stream, open_tokenizer, restart_sizes
from tests.tiny.models import tiny_corpus, tiny_model_dir, tiny_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    folder = tmp_path_factory.mktemp("made")
    return TrainConfig(
        data=DataConfig(path=str(tiny_corpus(folder / "data")), tokenizer=str(tiny_tokenizer(folder)), seq_len=32),
        model=ModelConfig(preset="pythia-14m"),
        train=TrainSection(steps=3, global_batch_size=8, micro_batch_size=2),
    )


def changed(config: TrainConfig, section: str, **fields: Any) -> TrainConfig:
    part = msgspec.structs.replace(getattr(config, section), **fields)
    return msgspec.structs.replace(config, **{section: part})


def test_every_field_reaches_the_stream(made: TrainConfig) -> None:
    stream = open_stream(
        changed(
            made,
            "data",
            repeats={"arxiv": 2},
            window=5,
            lanes=(4, 2),
            packing="concat",
            seed=3,
            subsets=["ArXiv", "github"],
        )
    )

    assert stream.repeats == {"ArXiv": 2.0}
    assert (stream.window, stream.packing, stream.seed, stream.seq_len) == (5, "concat", 3, 32)
    assert (stream.share.grid.rows, stream.share.grid.columns) == (4, 2)
    assert stream.subsets is not None
    assert set(stream.subsets) == {"ArXiv", "Github"}
    assert next(iter(stream))["input_ids"].shape == (8, 32)


def test_wrong_dedup_folders_and_repeats_are_named(made: TrainConfig, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(PilekitError, match=r"^data\.dedup: .*(was not written by pilekit|there is no such folder)"):
            open_stream(changed(made, "data", dedup=str(folder)))

    with pytest.raises(PilekitError, match=r"^data\.repeats: .*ArXif.*ArXiv"):
        open_stream(changed(made, "data", repeats={"ArXif": 2.0}))


def test_a_restart_may_use_any_ranks_that_divide_lanes_and_micro_batches(made: TrainConfig) -> None:
    for lane_rows, expected in ((2, [1, 2]), (None, [1, 2, 4])):
        config = made if lane_rows is None else changed(made, "data", lanes=(lane_rows, 2))
        assert restart_sizes(config, open_stream(config)) == expected
        for ranks in divisors(8):
            if ranks in expected:
                assert open_stream(config, world_size=ranks).batch_size == 8 // ranks
            else:
                with pytest.raises(PilekitError):
                    open_stream(config, world_size=ranks)


def test_a_model_brings_its_tokenizer(tmp_path: Path, made: TrainConfig) -> None:
    model = ModelConfig(path=str(tiny_model_dir(tmp_path / "model")))
    own = msgspec.structs.replace(changed(made, "data", tokenizer=None), model=model)
    assert open_tokenizer(own).path.parent == tmp_path / "model"
    with pytest.raises(PilekitError, match=r"^model.path: "):
        open_tokenizer(msgspec.structs.replace(own, model=ModelConfig(path=str(tmp_path / "none"))))
    with pytest.raises(PilekitError, match=r"^data.tokenizer: "):
        open_tokenizer(changed(made, "data", tokenizer=str(tmp_path / "none.json")))
