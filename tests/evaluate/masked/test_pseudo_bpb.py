"""`bits_per_byte` of a masked model, from its folder to pseudo-bits per byte."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from transformers import AutoModelForMaskedLM, PreTrainedTokenizerFast

from pilekit import bits_per_byte
from pilekit.errors import PilekitError
from pilekit.evaluate import bits_per_byte as scoring_run
from pilekit.evaluate.masked.pseudo_scoring import Template
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.result_folder import read_result
from tests.evaluate.pseudo_reference import reference_pseudo_nll
from tests.process_groups import ProcessGroups
from tests.tiny import WORDS, tiny_corpus, tiny_model_dir
from tests.tiny_masked import roberta_dir


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    tiny_corpus(folder / "corpus", shards=2, documents=20)
    roberta_dir(folder / "corpus", folder / "model")
    return folder


def figures(folder: str, **changes: Any) -> BitsPerByte:
    return bits_per_byte(Path(folder) / "model", Path(folder) / "corpus", device="cpu", **changes)


def sampled_figures(folder: str, out: str) -> BitsPerByte:
    return figures(folder, mlm_sample=3, out=out)


def keys(of: Any) -> Iterator[str]:
    """All keys of a JSON value, at any depth."""
    for key, value in of.items() if isinstance(of, dict) else enumerate(of) if isinstance(of, list) else ():
        yield str(key)
        yield from keys(value)


def test_every_document_is_as_in_the_reference(made: Path) -> None:
    """Tokens, special tokens and logits from transformers alone, in float64."""
    model: Any = AutoModelForMaskedLM.from_pretrained(made / "model").double().eval()
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(made / "model")
    template = Template((tokenizer.bos_token_id,), (tokenizer.eos_token_id,), tokenizer.mask_token_id)
    right: dict[str, list[float]] = {}
    sizes: dict[str, int] = {}
    for shard in sorted((made / "corpus").iterdir()):
        for line in zstandard.decompress(shard.read_bytes(), max_output_size=10**6).decode().splitlines():
            record = json.loads(line)
            label = record["meta"].get("pile_set_name", "(none)")
            if len(right.setdefault(label, [])) == 3:
                continue
            ids = tokenizer(record["text"], split_special_tokens=True, add_special_tokens=False)["input_ids"]
            right[label].append(reference_pseudo_nll(model, ids, template, 40))
            sizes[label] = sizes.get(label, 0) + len(record["text"].encode())

    result = figures(str(made), limit=3)

    assert result.protocol["kind"] == "masked"
    assert result.protocol["template"] == {"before": [300], "behind": [302], "mask": 303}
    assert result.protocol["max_length"] == 40
    assert result.subsets.keys() == right.keys()
    for name, losses in right.items():
        score = result.subsets[name]
        assert (score.documents, score.bytes) == (len(losses), sizes[name])
        assert score.nll == pytest.approx(sum(losses), rel=1e-6)
        assert score.bpb == pytest.approx(sum(losses) / math.log(2) / sizes[name], rel=1e-6)
    of_documents = [nll for losses in right.values() for nll in losses]
    assert result.records is not None
    assert sorted(result.records.nll) == pytest.approx(sorted(of_documents), rel=1e-5, abs=1e-5)
    assert 0.0 in of_documents  # an empty document is one


def test_no_figure_of_it_is_called_bits_per_byte(made: Path) -> None:
    content = figures(str(made), mlm_sample=2).to_dict()
    assert "bpb" not in set(keys(content))
    for score in (content["overall"], content["weighted"], *content["subsets"].values()):
        assert score["interval"][0] < score["pseudo_bpb"] < score["interval"][1]
    assert content["published"] is None


def test_a_sample_widens_the_interval(made: Path, tmp_path: Path) -> None:
    """Documents of the same words in another order differ little, and samples of their tokens much."""
    rng = random.Random(0)
    words = [*WORDS, *["a", "few", "more", "words", "of", "one", "letter", "and", "of", "many"]]
    lines = [json.dumps({"text": " ".join(rng.sample(words, len(words))), "meta": {}}) for _ in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    widths = []
    for sample in (None, 10, 2):
        score = bits_per_byte(made / "model", tmp_path, device="cpu", mlm_sample=sample).overall
        assert score.interval is not None
        widths.append(score.interval[1] - score.interval[0])
    assert widths[0] < 0.8 * widths[1] < 0.5 * widths[2]


def test_a_run_that_was_complete_needs_no_model(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = figures(str(made), mlm_sample=3, out=tmp_path)
    monkeypatch.setattr(scoring_run, "load_masked_lm", None)
    again = figures(str(made), mlm_sample=3, out=tmp_path, batch_tokens=100)
    assert again.to_dict() == first.to_dict()
    with pytest.raises(TypeError):
        figures(str(made), mlm_sample=4, out=tmp_path)  # another protocol has records of its own


@pytest.mark.slow
def test_two_ranks_choose_what_one_chooses(made: Path, tmp_path: Path, process_group: ProcessGroups) -> None:
    alone = figures(str(made), mlm_sample=3)
    for result in process_group(2).run(sampled_figures, str(made), str(tmp_path)):
        assert result.subsets.keys() == alone.subsets.keys()
        assert result.overall.nll == pytest.approx(alone.overall.nll, rel=1e-7)
        for name, score in result.subsets.items():
            assert score.nll == pytest.approx(alone.subsets[name].nll, rel=1e-7)


def refused(model: Path, corpus: Path, **changes: Any) -> str:
    with pytest.raises(PilekitError) as caught:
        bits_per_byte(model, corpus, device="cpu", **changes)
    message = str(caught.value)
    assert message.isprintable()
    return message


@pytest.mark.parametrize("changes", [{"context_len": 8}, {"prefix": "eos"}, {"prefix": 3}, {"paper": True}])
def test_what_is_for_causal_models_only(made: Path, changes: dict[str, Any]) -> None:
    message = refused(made / "model", made / "corpus", **changes)
    assert f"{next(iter(changes))} is for causal models, and this roberta model is a masked one" in message


def test_what_is_for_masked_models_only(made: Path, tmp_path: Path) -> None:
    causal = tiny_model_dir(tmp_path)
    assert "mlm_sample is for masked models" in refused(causal, made / "corpus", mlm_sample=3)


def test_bad_arguments_and_folders(made: Path, tmp_path: Path) -> None:
    model, corpus = made / "model", made / "corpus"
    for sample in (0, -1, True, 2.5):
        assert "mlm_sample is a whole number from 1 on" in refused(model, corpus, mlm_sample=sample)
    assert "max_length is 41, but the model has 40 positions" in refused(model, corpus, max_length=41)
    assert "2 of these are the special tokens" in refused(model, corpus, max_length=2)
    other = tmp_path / "model"
    other.mkdir()
    for file in model.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    content = json.loads((other / "tokenizer.json").read_text())
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<mask>"]
    (other / "tokenizer.json").write_text(json.dumps(content))
    assert "has no mask token" in refused(other, corpus)


def test_a_stored_result_is_read_again(made: Path, tmp_path: Path) -> None:
    found = sampled_figures(str(made), str(tmp_path))
    assert read_result(tmp_path).to_dict() == json.loads(json.dumps(found.to_dict()))
