"""`pilekit memorised` on the command line: table, JSON, plot, folder, and wrong usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilekit.evaluate.results.memorised_comparison import compare_memorised
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
    assert f"already done: 60 documents are scored already, recorded in {tmp_path / 'out'}" in caplog.text
    assert "resuming" not in caplog.text


def test_two_results_are_compared(model_dir: Path, corpus: Path, tmp_path: Path) -> None:
    other_dir = tiny_model_dir(tmp_path / "other", seed=1)
    folders = [str(tmp_path / letter) for letter in "ab"]
    for model, folder in zip((model_dir, other_dir), folders, strict=True):
        memorised(model, corpus, prompt=5, continuation=1, every=3, out=folder)
    expected = compare_memorised(*folders)
    assert expected.overall.new != expected.overall.forgotten
    shown = run("memorised", "--compare", *folders, exit_code=0)
    overall = expected.overall
    [line] = [line for line in shown.stdout.splitlines() if line.startswith("Overall")]
    assert line.split()[4:7] == [f"{count:,}" for count in (overall.both, overall.new, overall.forgotten)]
    assert f"B{other_dir}({folders[1]})" in "".join(shown.stdout.split())  # a long path is folded
    assert json.loads(run("memorised", "--compare", *folders, "--json", exit_code=0).stdout) == expected.to_dict()
    for arguments in (folders[:1], [*folders, "x"], [*folders, "--prompt", "5"], [*folders, "--out", "x"]):
        assert "--compare takes two folders that --out wrote" in run("memorised", "--compare", *arguments).stderr
    refused("none/sequences.parquet: is not there", "memorised", "--compare", folders[0], "none")


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
