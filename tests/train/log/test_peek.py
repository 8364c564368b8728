"""The command at the end of a warning works as printed, and shows exactly the documents that were trained on."""

from __future__ import annotations

import gzip
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pilekit.cli.main import pilekit
from pilekit.dedup.run import dedup_corpus
from pilekit.stream.pile_stream import PileStream
from pilekit.train.checkpoint.state_file import INDEX_FILE, Progress, own_sums, write_state
from pilekit.train.config.file import load_config
from pilekit.train.config.sections import TrainConfig
from pilekit.train.data import open_stream
from pilekit.train.log.peek import inspect_step_command
from tests.tiny.models import tiny_corpus, tiny_tokenizer
from tests.train.runs import small_config

Rows = list[list[tuple[str, int]]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("peek")
    tiny_corpus(folder / "a corpus", shards=3, documents=60)
    tiny_tokenizer(folder / "tokenizer")
    return folder


def config_of(made: Path, **data: Any) -> TrainConfig:
    given = {"path": made / "a corpus", "tokenizer": made / "tokenizer", "seq_len": 24, "window": 8, **data}
    sizes = {"train.global_batch_size": 6, "train.micro_batch_size": 6}
    return small_config({**{f"data.{name}": value for name, value in given.items()}, **sizes})


def trained_on(stream: PileStream, steps: int) -> list[Rows]:
    batches = iter(stream)
    return [next(batches).documents() for _ in range(steps)]


def shown_by(command: str) -> Rows:
    words = shlex.split(command)
    assert words[:2] == ["pilekit", "stream"]
    result = CliRunner().invoke(pilekit, [*words[1:], "--json"])
    assert result.exit_code == 0, result.output
    rows: dict[int, list[tuple[str, int]]] = {}
    for document in json.loads(result.stdout):
        rows.setdefault(document["row"], []).append((document["shard"], document["number"]))
    return sorted(rows.values())


def without_empty_rows(rows: Rows) -> Rows:
    return sorted(row for row in rows if row)


def test_it_shows_the_documents_of_a_step(made: Path) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"packing": "none", "on_error": "skip", "window": 16},
        {"repeats": {"ArXiv": 2.5, "Pile-CC": 0.0}, "lanes": (1, 1)},
        {"weights": {"ArXiv": 0.7, "github": 0.3}},
        {
            "schedule": [{"step": 0, "weights": {"ArXiv": 0.7, "github": 0.3}}, {"step": 4, "weights": {"Github": 1}}],
            "ramp": 2,
        },
        {"subsets": ["github", "arxiv"], "lanes": (3, 2), "packing": "concat", "seed": 7},
        {"dedup": str(made / "unique"), "copies": 0.7, "copies_max": 3},
    ]
    dedup_corpus(made / "a corpus", out=made / "unique", write=False)
    for data in settings:
        config = config_of(made, **data)
        stream = open_stream(config)
        steps = trained_on(stream, 9)
        for step in (1, 9):
            command = inspect_step_command(config, stream, step)
            assert shown_by(command) == without_empty_rows(steps[step - 1]), command


def test_several_shards_without_an_index(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw shards without an index, read under the sequential plan, named one by one."""
    monkeypatch.chdir(tmp_path)
    names = ["-0.jsonl.gz", "-1.jsonl.gz", "-2.jsonl.gz"]
    for name in names:
        lines = [json.dumps({"text": f"document {name} {i} " * (i % 7)}) for i in range(50)]
        Path(name).write_bytes(gzip.compress("\n".join(lines).encode()))
    config = config_of(made, path=names, manifest="demo")
    stream = open_stream(config)
    steps = trained_on(stream, 3)
    assert shown_by(inspect_step_command(config, stream, 3)) == without_empty_rows(steps[2])


def test_from_a_checkpoint(made: Path, tmp_path: Path) -> None:
    config = config_of(made)
    stream = open_stream(config)
    batches = iter(stream)
    before = []
    for _ in range(5):
        before.append((batch := next(batches)).documents())
        stream.advance(batch)
    checkpoint = tmp_path / "step-5"
    checkpoint.mkdir()
    (checkpoint / INDEX_FILE).write_bytes(b"")
    (checkpoint / "__0_0.distcp").write_bytes(b"")
    write_state(checkpoint, Progress(5, 1, stream.state_dict(), 1), {}, own_sums(checkpoint, 0))
    ahead = [next(batches).documents() for _ in range(3)]
    for step in (6, 8):
        command = inspect_step_command(config, stream, step, checkpoint)
        assert "--lanes" not in command
        assert shown_by(command) == without_empty_rows(ahead[step - 6])
    for step in (5, 1):  # before the checkpoint
        command = inspect_step_command(config, stream, step, checkpoint)
        assert "--state" not in command
        assert shown_by(command) == without_empty_rows(before[step - 1])
    whole = (checkpoint / "state.json").read_bytes()
    for content, message in (
        (b'{"progress": 5}', "is not a good checkpoint: state.json is not that of a checkpoint"),
        (whole.replace(b'"step": 5', b'"step": 7'), "is not a good checkpoint: state.json is damaged"),
        (b'{"xxh3": "0", "state": {"progress": 5}}', "is a checkpoint of format 2"),
    ):
        (checkpoint / "state.json").write_bytes(content)
        result = CliRunner().invoke(pilekit, shlex.split(inspect_step_command(config, stream, 6, checkpoint))[1:])
        assert result.exit_code == 1
        assert message in str(result.exception)
    config = load_config(config, {"data.tokenizer": None, "model.path": "a_model"})
    assert " --tokenizer a_model " in inspect_step_command(config, stream, 1)
