"""`pilekit memorised` on the command line: table, JSON, plot, folder, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilekit.exposure.memorised import memorised
from tests.cli.running import refused, run
from tests.tiny.models import tiny_corpus, tiny_model_dir

SHORT = ("--prompt", "5", "--continuation", "4", "--every", "3")


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model_dir(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


def test_table_json_plot_and_folder(
    model_dir: Path, corpus: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = memorised(model_dir, corpus, prompt=5, continuation=4, every=3)
    files = ("--out", tmp_path / "out", "--plot", tmp_path / "shares.png")
    shown = run("memorised", model_dir, corpus, *SHORT, *files, exit_code=0)
    assert [line.split()[0] for line in shown.stdout.splitlines() if f"{expected.overall.sequences:,}" in line] == [
        "Overall"
    ]
    sentence = "at each 3 tokens of a document: a prompt of 5 tokens, nothing before it, and 4 to continue"
    assert sentence in " ".join(shown.stdout.split())  # the table folds it to its width
    assert "prefix" not in shown.stdout
    assert f"written: {tmp_path / 'out' / 'sequences.parquet'}" in shown.stderr
    assert (tmp_path / "shares.png").read_bytes().startswith(b"\x89PNG")
    again = run("memorised", model_dir, corpus, *SHORT, "--out", tmp_path / "out", "--json", exit_code=0)
    assert json.loads(again.stdout) == expected.to_dict()
    assert "60 documents are scored already" in caplog.text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "a sequence has 64 tokens, 32 of them the prompt, but the model has 32 positions; give shorter ones"),
        (("--every", "x"), "every is first or a number of tokens, 1 at least, not 'x'"),
        (("--plot", "x.txt"), "x.txt"),
    ],
)
def test_what_is_wrong_is_one_line(model_dir: Path, corpus: Path, arguments: tuple[str, ...], message: str) -> None:
    refused(message, "memorised", model_dir, corpus, *arguments)
    assert run("memorised", model_dir, corpus, "--prompt", "0").exit_code == 2
