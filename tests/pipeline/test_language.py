"""Documents are kept by the labels and scores that fastText itself gives."""

from __future__ import annotations

import importlib.util
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from pilekit import Language, PilekitError, clean_corpus
from tests.cli.running import run, run_json
from tests.pipeline.making import batch, identities
from tests.shards import making

needs_fasttext = pytest.mark.skipif(
    importlib.util.find_spec("fasttext") is None, reason="fasttext is not installed: pip install 'pilekit[language]'"
)
ENGLISH, GERMAN = "the {} is in the house and of the garden", "der {} ist in dem haus und des garten"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two languages, trained on the spot."""
    import fasttext

    folder = tmp_path_factory.mktemp("model")
    lines = [
        f"__label__{label} {line.format(word)}\n"
        for word in ("dog", "cat", "hund", "katze")
        for label, line in (("en", ENGLISH), ("de", GERMAN))
    ]
    (folder / "train.txt").write_text("".join(lines * 40))
    trained = fasttext.train_supervised(str(folder / "train.txt"), epoch=20, lr=0.1, dim=16, thread=1, verbose=0)
    trained.save_model(str(folder / "lid.bin"))
    return folder / "lid.bin"


TEXTS = [ENGLISH.format("tree"), GERMAN.format("baum"), "the\nhouse\nin", "of und the der", "", "zzz"]


@needs_fasttext
def test_labels_and_scores_are_fasttexts(model: Path) -> None:
    import fasttext

    loaded = fasttext.load_model(str(model))
    for keep, score in ((["en"], 0.65), (["de", "en"], 0.9), ("en", 0.0), (["fr"], 0.1)):
        stage: Any = pickle.loads(pickle.dumps(Language(model, keep, score)))
        expected = []
        for text in TEXTS:
            labels, scores = loaded.predict(text.replace("\n", " "))
            expected.append(bool(labels) and labels[0][9:] in stage.keep and scores[0] >= score)
        assert (~stage.judge(batch(TEXTS))["language"]).tolist() == expected
        kept = [text for *_, text in identities(stage(iter([batch(TEXTS)])))]
        assert kept == [text for text, keeps in zip(TEXTS, expected, strict=True) if keeps]
    assert list(Language(model)(iter([batch([])]))) == []


@needs_fasttext
def test_cleaning_by_language_counts_each_language(model: Path, tmp_path: Path) -> None:
    lines = [making.record(text, label) for label in ("Pile-CC", "ArXiv") for text in TEXTS[:3]]
    (tmp_path / "00.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    options = ["--language", "en", "--language-model", model, "--subsets", "Pile-CC"]
    found = run_json("clean", tmp_path / "00.jsonl", *options, "--report")
    assert found["subsets"]["Pile-CC"]["languages"] == found["languages"] == {"de": 1, "en": 2}
    assert found["rules"]["language"] == {"documents": 1, "alone": 1, "bytes": len(TEXTS[1])}
    nothing = run_json("clean", tmp_path / "00.jsonl", "--language", "", *options[2:], "--report")
    assert nothing["rules"]["language"]["documents"] == 3
    (shown,) = run_json("clean", tmp_path / "00.jsonl", *options, "--show", "language")["shown"]
    label, score = shown["value"]
    assert label == "de"
    assert 0 < score != round(score, 4)
    for jobs in (1, 2):
        language = Language(model, ["en"])
        cleaned = clean_corpus(tmp_path / "00.jsonl", tmp_path / f"{jobs}", language=language, subsets=["Pile-CC"])
        assert cleaned.to_dict() == found
    assert json.loads((tmp_path / "1" / "pilekit.json").read_bytes())["parameters"]["language"] == language.identity


def test_a_missing_model_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(PilekitError, match=r"no such file; give a fastText model that you have"):
        Language(tmp_path / "none.bin")
    (tmp_path / "no.bin").write_bytes(b"no model")
    with pytest.raises(PilekitError, match=r"is no fastText model|pip install 'pilekit\[language\]'"):
        Language(tmp_path / "no.bin")
    for options in (["--language", "en"], ["--language-model", tmp_path / "no.bin"]):
        assert "belong together" in run("clean", tmp_path, "--report", *options, exit_code=2).stderr
