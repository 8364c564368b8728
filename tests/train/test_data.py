"""From `[data]` to a stream: every field reaches it, each rank gets its share, and errors name the field."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from pilekit import tokenize_corpus
from pilekit.errors import PilekitError
from pilekit.stream.order.lane_grid import divisors
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import TrainConfig
from pilekit.train.data import open_stream, open_tokenizer, restart_sizes
from pilekit.train.log.peek import inspect_step_command
from pilekit.train.trainer import Trainer
from tests.refusing import refused
from tests.tiny.models import tiny_model_dir
from tests.train.runs import tiny_run


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    return load_config(tiny_run(tmp_path_factory.mktemp("made"), "train.global_batch_size=8") / "tiny.toml")


def test_every_field_reaches_the_stream(made: TrainConfig) -> None:
    named = {"data.repeats": {"arxiv": 2}, "data.subsets": ["ArXiv", "github"], "data.packing": "concat"}
    stream = open_stream(load_config(made, {**named, "data.window": 5, "data.lanes": (4, 2), "data.seed": 3}))

    assert stream.repeats == {"ArXiv": 2.0}
    assert (stream.window, stream.packing, stream.seed, stream.seq_len) == (5, "concat", 3, 32)
    assert (stream.share.grid.rows, stream.share.grid.columns) == (4, 2)
    assert stream.subsets is not None
    assert set(stream.subsets) == {"ArXiv", "Github"}
    assert next(iter(stream))["input_ids"].shape == (8, 32)


def test_text_field_and_label_reach_the_stream_and_its_state(made: TrainConfig, tmp_path: Path) -> None:
    words = ["Ein Märchen für Übermütige", "The quick brown fox", "jumps over the lazy dog"] * 30
    records = [{"content": text, "from": {"kind": f"kind {i % 2}"}} for i, text in enumerate(words)]
    (tmp_path / "own.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    (tmp_path / "own.toml").write_text('name = "own"\ntext_field = "content"\nlabel_path = "from.kind"\n')
    fields = {"data.text_field": "content", "data.label": "from.kind", "data.subsets": ["kind 1"]}
    config = load_config(made, {"data.path": tmp_path / "own.jsonl", **fields})
    stream = open_stream(config)
    manifest = {"data.manifest": tmp_path / "own.toml", "data.text_field": None, "data.label": None}
    described = open_stream(load_config(config, manifest))
    ours, theirs = iter(stream), iter(described)
    for _ in range(3):
        assert next(ours)["input_ids"].tolist() == next(theirs)["input_ids"].tolist()
    described.load_state_dict(stream.state_dict())
    other = open_stream(load_config(config, {"data.label": "kind", "data.subsets": None}))
    with pytest.raises(PilekitError, match="label_path"):
        other.load_state_dict(stream.state_dict())
    assert "--text-field content --label from.kind" in inspect_step_command(config, stream, 1)


def test_text_field_and_label_are_refused_where_they_mean_nothing(made: TrainConfig, tmp_path: Path) -> None:
    for changes, message in (
        ({"data.manifest": "demo", "data.label": "a"}, r"^data\.manifest: a manifest says where text and label are"),
        ({"data.label": "a..b"}, r"^data: .*label.* meta\.source"),
    ):
        refused(message, open_stream, load_config(made, changes))
    tokenize_corpus(made.data.path, tmp_path / "tokens" / "own", made.data.tokenizer)
    for field in ("text_field", "label"):
        wrong = load_config(made, {"data.path": tmp_path / "tokens" / "own", f"data.{field}": "text"})
        refused(rf"^data\.{field}: token files have no fields; leave it out", open_stream, wrong)


def test_wrong_dedup_folders_and_repeats_are_named(made: TrainConfig, tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(PilekitError, match=r"^data\.dedup: .*(was not written by pilekit|there is no such folder)"):
            open_stream(load_config(made, {"data.dedup": folder}))

    refused(r"^data\.repeats: .*ArXif.*ArXiv", open_stream, load_config(made, {"data.repeats": {"ArXif": 2.0}}))


def test_a_restart_may_use_any_ranks_that_divide_lanes_and_micro_batches(made: TrainConfig) -> None:
    for lane_rows, expected in ((2, [1, 2]), (None, [1, 2, 4])):
        config = made if lane_rows is None else load_config(made, {"data.lanes": (lane_rows, 2)})
        assert restart_sizes(config, open_stream(config)) == expected
        for ranks in divisors(8):
            if ranks in expected:
                assert open_stream(config, world_size=ranks).batch_size == 8 // ranks
            else:
                with pytest.raises(PilekitError):
                    open_stream(config, world_size=ranks)


def test_a_model_brings_its_tokenizer(tmp_path: Path, made: TrainConfig) -> None:
    own = load_config(made, {"data.tokenizer": None, "model.path": tiny_model_dir(tmp_path / "model")})
    assert open_tokenizer(own).path.parent == tmp_path / "model"
    refused(r"^model.path: ", open_tokenizer, load_config(own, {"model.path": tmp_path / "none"}))
    refused(r"^data.tokenizer: ", open_tokenizer, load_config(made, {"data.tokenizer": tmp_path / "none.json"}))


def test_a_trainer_says_what_it_is(made: TrainConfig, tmp_path: Path) -> None:
    trainer = Trainer(made, tmp_path / "out")
    assert repr(trainer).startswith(f"Trainer({str(tmp_path / 'out')!r}, PileStream(Corpus('")
    with pytest.raises(AttributeError, match=r"did you mean trainer\.fit\?"):
        trainer.train()  # type: ignore[attr-defined]
