"""`pilekit stream`: the samples, the rate, the plan, and no control character of a text on the terminal."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
from pathlib import Path

import pytest

from pilekit.stream.pile_stream import PileStream
from tests.cli.running import PILEKIT, on_terminal, refused, run, run_json
from tests.shards.making import record
from tests.tokenize.making import byte_level_bpe, saved

TEXTS = [("Github", "def f(x):\n\treturn x\n"), ("Pile-CC", "The quick brown fox"), ("ArXiv", "Wir läuten")]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(byte_level_bpe(600), tmp_path_factory.mktemp("tokenizer") / "tokenizer.json")


@pytest.fixture(scope="module")
def shard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "a.jsonl"
    path.write_bytes(b"".join(record(text, subset) + b"\n" for subset, text in TEXTS * 20))
    return path


def test_samples_and_rate(shard: Path, tokenizer: Path) -> None:
    arguments = (shard, "--tokenizer", tokenizer, "--seq-len", 32, "--batch-size", 2, "--steps", 9)
    result = run("stream", *arguments, exit_code=0)
    assert "── Github  a.jsonl document " in result.stdout
    assert "def f(x):↵\\x09return x↵" in result.stdout
    assert "9 batches of 2 x 32" in result.stdout
    assert re.search(
        r", \d\d\.\d % full: the first after \d+\.\d\d s,\nthen \d[\d.]*[kM]? tokens/s .*\)\n", result.stdout
    )
    assert re.search(r"^Github +\d+ +\d+\.\d\d$", result.stdout, re.MULTILINE)
    assert result.stderr == "order: random over the whole corpus, document by document\n"
    found = run_json("stream", *arguments)
    assert found["batches"] == 9
    assert 0.8 * 9 * 64 < found["tokens"] <= 9 * 64
    assert found["fill"] == found["tokens"] / (9 * 64)
    assert sum(found["subsets"].values()) == found["tokens"]
    assert 0 < found["first_batch_seconds"] < found["seconds"]
    assert found["tokens_per_second"] > 0
    assert len(found["samples"]) == 3
    for sample in found["samples"]:
        assert sum(document["tokens"] for document in sample) <= 32
        for document in sample:
            subset, text = TEXTS[document["number"] % 3]
            expected = {"shard": "a.jsonl", "subset": subset, "text": text}
            assert expected.items() <= document.items()


def test_what_is_wrong_is_refused(shard: Path, tokenizer: Path) -> None:
    for options, message in (
        (("--subsets", "Books3"), "no document is selected by subsets"),
        (("--state", tokenizer.with_name("none.json")), "cannot be read"),
    ):
        refused(message, "stream", shard, "--tokenizer", tokenizer, *options)
    for wrong in ([], ["--tokenizer", tokenizer, "--repeats", "="], ["--tokenizer", "t", "--explain", "--peek", "3"]):
        run("stream", shard, *wrong, exit_code=2)


def test_bad_lines_packing_subsets_and_repeats(shard: Path, tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_bytes(b"{oops\n" + shard.read_bytes())
    arguments = (tmp_path, "--tokenizer", tokenizer, "--seq-len", 64, "--batch-size", 4, "--steps", 5)
    refused(r"broken\.jsonl, line 1(?s:.*)--on-error skip", "stream", *arguments)
    options = ("--packing", "none", "--subsets", "pile_arxiv,GitHub", "--repeats", "Github=0", "--on-error", "skip")
    samples = run_json("stream", *arguments, *options)["samples"]
    assert [len(sample) for sample in samples] == [1, 1, 1]
    assert {sample[0]["subset"] for sample in samples} == {"ArXiv"}
    arguments = (shard, "--tokenizer", tokenizer, "--seq-len", 32, "--weights", "arxiv=1,github=3", "--steps", 1)
    told = run("stream", *arguments, exit_code=0).stderr
    assert re.search(r"^repeats by these weights: ArXiv \d\S*, Github \d\S*$", told, re.MULTILINE), told


def test_standard_input(shard: Path, tokenizer: Path) -> None:
    command = [*PILEKIT, "stream", "-", "--tokenizer", str(tokenizer), "--json"]
    done = subprocess.run(command, input=shard.read_bytes(), capture_output=True, check=True)
    found = json.loads(done.stdout)
    assert found["batches"] == 1
    assert found["samples"][0][0]["shard"] == "(stdin)"


def test_explain(shard: Path, tokenizer: Path) -> None:
    arguments = (shard, "--tokenizer", tokenizer, "--seq-len", 32, "--world-size", 2, "--explain")
    explained = run_json("stream", *arguments)
    assert (explained["plan"], explained["world_size"], explained["global_batch_size"]) == ("random", 2, 16)
    result = run("stream", *arguments, "--global-batch-size", 64, exit_code=0)
    assert max(map(len, result.stdout.splitlines())) <= 80
    lines = dict(line.strip().split(maxsplit=1) for line in result.stdout.splitlines() if not line.startswith(" "))
    assert lines["plan"].startswith("random: the corpus's text")
    assert lines["step"] == "64 samples: batch_size 32 x grad_accum 1 x world_size 2"


def test_peek_shows_the_batch_of_training(shard: Path, tokenizer: Path) -> None:
    arguments = (shard, "--tokenizer", tokenizer, "--seq-len", 32, "--batch-size", 4, "--window", 8)
    arguments = (*arguments, "--repeats", "ArXiv=2")
    documents = run_json("stream", *arguments, "--peek", 2)
    made = PileStream(
        shard, tokenizer=tokenizer, seq_len=32, batch_size=4, window=8, repeats={"ArXiv": 2}, outputs=("input_ids",)
    )
    third = next(itertools.islice(made, 2, None))
    rows = itertools.groupby(documents, lambda document: document["row"])
    found = [[(document["shard"], document["number"]) for document in row] for _, row in rows]
    assert sorted(found) == sorted(third.documents())
    lines = run("stream", *arguments, "--peek", 2).stdout.splitlines()
    assert lines[0].split() == ["Subset", "Shard", "Number", "Row", "Tokens", "First", "words"]
    assert len(lines) == 2 + len(documents)


def test_documents_without_loss_and_planted_texts(shard: Path, tokenizer: Path, tmp_path: Path) -> None:
    """A run's state is refused without them; with them, `--peek` shows what the run reads."""
    texts = [record("a canary sings", "Github"), record("it flies", None)]
    (tmp_path / "canary.jsonl").write_bytes(b"\n".join(texts))
    (tmp_path / "hidden.jsonl").write_text(json.dumps({"shard": "a.jsonl", "number": 4}) + "\n")
    plant = [{"file": tmp_path / "canary.jsonl", "copies": [3, 0], "from": 1, "to": 4}]
    sizes = {"seq_len": 32, "batch_size": 4, "window": 8}
    made = PileStream(shard, tokenizer=tokenizer, plant=plant, without=tmp_path / "hidden.jsonl", **sizes)
    batches = list(itertools.islice(made, 2))
    state = tmp_path / "state.json"
    state.write_text(json.dumps(made.state_dict()))
    common = (shard, "--tokenizer", tokenizer, *(f"--{name.replace('_', '-')}={size}" for name, size in sizes.items()))
    planted = f'[{{file = "{tmp_path / "canary.jsonl"}", copies = [3, 0], from = 1, to = 4}}]'
    changed = (*common, "--without", tmp_path / "hidden.jsonl", "--plant", planted)
    batches += itertools.islice(made, 2)
    for step in (2, 3):
        peeked = run_json("stream", *changed, "--state", state, "--peek", step)
        found = [[(one["shard"], one["number"]) for one in peeked if one["row"] == row] for row in range(4)]
        assert sorted(found) == sorted(batches[step].documents())
    everything = [row for batch in batches for row in batch.documents()]
    assert everything.count([("canary.jsonl", 0)]) == 3
    for missing, others in (("plant", changed[:-2]), ("without", (*common, *changed[-2:]))):
        refused(f"the stream's state does not fit: its {missing} is ", "stream", *others, "--state", state)

    explained = run_json("stream", *changed, "--explain")
    assert explained["without"]["documents"] == 1
    steps = {"texts": 2, "copies": 3, "steps": [1, 4]}
    assert explained["plant"] == [{"path": str(tmp_path / "canary.jsonl"), **steps}]
    lines = " ".join(run("stream", *changed, "--explain", exit_code=0).stdout.split())
    assert "no loss 1 document of " in lines
    assert "planted 3 copies of 2 texts of " in lines
    assert "from step 1 on and before 4 " in lines
    assert "no loss the subset ArXiv " in " ".join(
        run("stream", *common, "--without", "pile_arxiv", "--explain", exit_code=0).stdout.split()
    )
    refused('unknown subset "arxif".* did you mean ArXiv', "stream", *common, "--without", "arxif")
    for wrong, told in (
        ("canary.jsonl", "must be a list"),
        ("[{file='a', to=4}]", "plant[0].copies is missing"),
        ("[{file='a', copies=1, from=4, to=4}]", "there is no step"),
    ):
        assert told in " ".join(run("stream", *common, "--plant", wrong, exit_code=2).stderr.split())


def test_a_state_from_a_file(shard: Path, tokenizer: Path, tmp_path: Path) -> None:
    made = PileStream(shard, tokenizer=tokenizer, seq_len=32, batch_size=2, window=8)
    list(itertools.islice(made, 3))
    file = tmp_path / "state.json"
    file.write_text(json.dumps(made.state_dict()))
    arguments = (shard, "--tokenizer", tokenizer, "--seq-len", 32, "--batch-size", 2, "--state", file)
    fourth = next(iter(made)).documents()
    for sample in run_json("stream", *arguments, "--window", 8, "--steps", 1)["samples"]:
        assert [(document["shard"], document["number"]) for document in sample] in fourth
    peeked = run_json("stream", *arguments, "--window", 8, "--peek", 3)
    assert [[(d["shard"], d["number"]) for d in peeked if d["row"] == row] for row in (0, 1)] == fourth
    refused("its window is 8, here it is 256", "stream", *arguments)
    file.write_text("{")
    refused(r"state\.json: is not JSON", "stream", *arguments)


def test_on_a_terminal_the_texts_of_samples_are_broken_at_spaces(tmp_path: Path, tokenizer: Path) -> None:
    words = " ".join(f"word{n:03d}" for n in range(200))
    (tmp_path / "a.jsonl").write_bytes(record(words, "Github") + b"\n")
    arguments = ("stream", tmp_path / "a.jsonl", "--tokenizer", tokenizer, "--seq-len", 200, "--batch-size", 1)
    shown = [line.rstrip() for line in on_terminal(*arguments, "--steps", 2).splitlines() if "word" in line]
    assert len(shown) > 2
    assert max(map(len, shown)) <= 80
    assert all(re.fullmatch(r"word\d{3}", line.split()[-1]) for line in shown if len(line) > 72)
