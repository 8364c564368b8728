"""Base, and base + adapter, are two models for results, records, comparisons, embeddings and reports."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from pilekit.cli.main import pilekit
from pilekit.evaluate.bits_per_byte import bits_per_byte
from pilekit.evaluate.embed_corpus import embed_corpus
from pilekit.evaluate.results.compare import compare
from pilekit.evaluate.results.result_folder import read_result
from pilekit.models import folder as folder_module
from pilekit.report.collect import sort_out
from pilekit.train.model.prune import prune_model
from tests.cli.running import refused as refused_command
from tests.evaluate.folders import same
from tests.refusing import refused
from tests.tiny.adapters import tiny_adapter
from tests.tiny.models import tiny_model, tiny_model_dir


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base with an adapter beside its weights, another adapter, and peft's merged models of both."""
    folder = tmp_path_factory.mktemp("adapters")
    for name, seed in (("base", 1), ("other", 2)):
        both = tiny_adapter(tiny_model_dir(folder / "base") if name == "base" else folder / name, seed=seed)
        both.merge_and_unload().save_pretrained(folder / f"merged-{name}")
        shutil.copy(folder / "base" / "tokenizer.json", folder / f"merged-{name}")
    tiny_model_dir(folder / "plain")
    return folder


def test_what_is_scored_is_what_the_protocol_names(made: Path, corpus: Path, tmp_path: Path) -> None:
    base, out = made / "base", tmp_path / "out"
    alone = bits_per_byte(base, corpus, out=out)
    same(alone, bits_per_byte(made / "plain", corpus))
    found = {name: bits_per_byte(base, corpus, adapter=made / name, out=out) for name in ("base", "other")}
    for name, result in found.items():
        merged = bits_per_byte(made / f"merged-{name}", corpus)
        assert result.overall.bpb == pytest.approx(merged.overall.bpb, rel=1e-5)
        assert abs(result.overall.bpb - alone.overall.bpb) > 0.01  # type: ignore[operator]
        adapter = result.protocol["model"].pop("adapter")
        assert adapter["path"] == str(made / name)
        assert re.fullmatch("xxh3:[0-9a-f]{32}", adapter["files"])
        assert result.protocol["model"] == alone.protocol["model"]
    assert len(list((out / "records").iterdir())) == 3
    assert read_result(out).overall == found["other"].overall


def test_a_run_resumes_the_model_and_adapter_that_it_began(
    made: Path, corpus: Path, tmp_path: Path, scored: list[tuple[str, int]]
) -> None:
    shutil.copytree(made / "other", tmp_path / "copy")
    first = bits_per_byte(made / "base", corpus, adapter=made / "other", out=tmp_path / "out")
    begun = len(scored)
    again = bits_per_byte(made / "base", corpus, adapter=tmp_path / "copy", out=tmp_path / "out")
    assert len(scored) == begun
    assert again.overall == first.overall
    (config,) = (tmp_path / "copy").glob("adapter_config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 6}))
    bits_per_byte(made / "base", corpus, adapter=tmp_path / "copy", out=tmp_path / "out", limit=2)
    assert len(scored) > begun


def test_a_comparison_and_a_report_name_the_adapter(made: Path, corpus: Path, tmp_path: Path) -> None:
    base, adapter, run = str(made / "base"), str(made / "other"), CliRunner().invoke
    for name, more in (("a", []), ("b", ["--adapter", adapter])):
        done = run(pilekit, ["bpb", base, str(corpus), "--out", str(tmp_path / name), *more])
        assert done.exit_code == 0, done.output
        assert ("adapter    " in done.stdout.replace("\n", " ")) is bool(more)
    comparison = compare([read_result(tmp_path / name) for name in "ab"])
    assert comparison.models == (base, f"{base} + {adapter}")
    assert comparison.against[0].overall.difference
    [artefact], _ = sort_out([tmp_path / "b"], [])
    assert f"--adapter {adapter}" in artefact.command
    wrong = run(pilekit, ["bpb", "--compare", base, base, str(corpus), "--adapter", adapter])
    assert wrong.exit_code == 2
    assert "--adapter is of one model: score it with --out" in wrong.output


def test_embeddings_are_of_what_is_named(made: Path, corpus: Path, tmp_path: Path) -> None:
    of = {
        "plain": embed_corpus(made / "plain", corpus, tmp_path / "plain.parquet", float32=True),
        "base": embed_corpus(made / "base", corpus, tmp_path / "base.parquet", float32=True),
        "merged": embed_corpus(made / "merged-other", corpus, tmp_path / "merged.parquet", float32=True),
        "both": embed_corpus(made / "base", corpus, tmp_path / "both.parquet", float32=True, adapter=made / "other"),
    }
    vectors = {name: next(group for _, group in one.groups()) for name, one in of.items()}
    assert abs(vectors["plain"] - vectors["base"]).max() == 0
    assert abs(vectors["merged"] - vectors["both"]).max() < 1e-4
    assert abs(vectors["base"] - vectors["both"]).max() > 0.1
    assert of["both"].protocol["model"]["adapter"]["path"] == str(made / "other")
    said = refused("was made with other settings", embed_corpus, made / "base", corpus, tmp_path / "both.parquet")
    assert str(tmp_path) in said


def test_a_pruned_model_is_of_what_is_named(made: Path, tmp_path: Path) -> None:
    for name, model, adapter in (
        ("plain", "plain", None),
        ("base", "base", None),
        ("merged", "merged-other", None),
        ("both", "base", made / "other"),
    ):
        prune_model(made / model, tmp_path / name, magnitude=0.4, adapter=adapter)
    weights = {name: tiny_weights(tmp_path / name) for name in ("plain", "base", "merged", "both")}
    assert all((weights["plain"][name] == value).all() for name, value in weights["base"].items())
    assert all(abs(weights["merged"][name] - value).max() < 1e-5 for name, value in weights["both"].items())
    assert any((weights["plain"][name] != value).any() for name, value in weights["both"].items())


def tiny_weights(folder: Path) -> dict[str, object]:
    model = type(tiny_model()).from_pretrained(folder)
    return {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}


def test_without_peft_a_figure_is_the_base_s_and_an_adapter_is_one_line(
    made: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "find_spec", lambda name: None)
    for command in (["bpb"], ["embed", "--out", "x.parquet"], ["prune", "--magnitude", "0.5", "--out", "x"]):
        given = [*command, str(made / "base"), str(corpus), "--adapter", str(made / "other")]
        line = f"the adapter {made}/other needs the package peft: pip install 'pilekit[peft]'"
        refused_command(f"{re.escape(line)}$", *given)
