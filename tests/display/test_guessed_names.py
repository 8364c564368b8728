"""First guesses of people who know pilekit's commands and other libraries: the error for each names the right word."""

from __future__ import annotations

import importlib
import inspect
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import pilekit
from pilekit.cli.main import COMMANDS
from pilekit.cli.main import pilekit as command_group
from pilekit.display import guessed_words
from pilekit.display.wrong_names import public_name
from pilekit.evaluate.results.result import BitsPerByte
from pilekit.evaluate.results.scores import Score
from tests.pipeline.making import write_shard
from tests.tokenize.making import byte_level_bpe

COMMANDS_ALONE = {"doctor", "explore"}

GUESSES = [
    ("pilekit.stats", "did you mean corpus_stats? `pilekit stats` is pilekit.corpus_stats"),
    ("pilekit.load_dataset", "did you mean read?"),
    ("pilekit.TrainerConfig", "did you mean TrainConfig"),
    ("pilekit.stat", "did you mean corpus_stats"),
    ("pilekit.Deduplicated", "it is DropDuplicates now"),
    ("corpus.subsets", "corpus_stats(corpus).subsets"),
    ("corpus.stats()", "pilekit.corpus_stats"),
    ("corpus.document", "documents"),
    ("pilekit.Corpus(path, text_key='text')", "text_field"),
    ("batch.text", "texts"),
    ("batch['text']", "texts"),
    ("batch[0].metadata", "meta"),
    ("stats['Arxiv']", "ArXiv"),
    ("stats.to_pandas()", "result.to_arrow()?"),
    ("selected.to_json()", "result.to_dict()"),
    ("tokenizer.eos_token_id", "eos_id"),
    ("pilekit.Tokenizer(tokenizer.path)", "load_tokenizer(path)"),
    ("pilekit.PileStream(path, tokenizer, num_workers=2)", "stream.loader(num_workers=...)"),
    ("pilekit.PileStream(path, tokenizer, proportion=0.5)", "weights"),
    ("rows.input_ids", 'batch["input_ids"]'),
    ("rows['text']", "batch.documents()"),
    ("rows[0]", 'batch["input_ids"][0]'),
    ("result.bpb", "result.overall.bpb"),
]
"""An expression, and a part of its error."""

WORKS = [
    "list(corpus)[:len(corpus)]",
    "next(corpus.documents()).text",
    "pilekit.Corpus(path, text_field='text', label='meta.pile_set_name')",
    "[document for batch in pilekit.read(path) for document in batch][0].meta",
    "stats['ArXiv'].tokens",
    "pilekit.load_tokenizer(tokenizer.path).decode(tokenizer.encode('hi'))",
    "next(iter(stream.loader()))['input_ids']",
    "rows.documents()[0]",
    "pilekit.resolve_subsets('github', manifest='pile')",
]

CALLS = [
    ("pilekit.corpus_stats(path, job=2)", "did you mean jobs?"),
    ("pilekit.corpus_stats(path, num_proc=2)", "did you mean jobs?"),
    ("pilekit.corpus_stats(path, label='lang')", "did you mean Corpus(path, label=...)?"),
    ("pilekit.corpus_stats(path, json=True)", "did you mean result.to_dict()?"),
    ("pilekit.corpus_stats(path, nothing_of_the_kind=1)", "it takes corpus, subsets, tokenizer, "),
    ("pilekit.dedup_corpus(path, heldOut='include')", "did you mean held_out?"),
    ("pilekit.dedup_corpus(path, **{'held-out': 'include'})", "did you mean held_out?"),
    ("pilekit.dedup_corpus(path, no_write=True)", "did you mean write=False?"),
    ("pilekit.generate('m', data=path)", "did you mean prompts=prompts_of(data, tokenizer)?"),
    ("pilekit.bits_per_byte('m', path, seq_len=512)", "did you mean max_length?"),
    ("pilekit.Ray(adress='auto')", "did you mean address?"),
    ("pilekit.Pack(max_length=64)", "did you mean seq_len?"),
    ("stream.peek(stp=3)", "did you mean step?"),
    ("pilekit.PileStream.merge_state_dicts(part=[])", "did you mean parts?"),
    ("pilekit.Corpus.of(path, manifests=None)", "did you mean manifest?"),
]
"""A call with a wrong keyword of a function, a class, a method, a static method or a class method."""


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The objects that a session has at hand, by name."""
    folder = tmp_path_factory.mktemp("guesses")
    corpus = folder / "data"
    texts = [f"document {number} has some words to read" for number in range(40)]
    write_shard(corpus / "00.jsonl", texts, ["ArXiv", "Github"] * 20)
    byte_level_bpe(300).save(str(folder / "tokenizer.json"))
    tokenizer = pilekit.load_tokenizer(folder / "tokenizer.json")
    stream = pilekit.PileStream(corpus, tokenizer, seq_len=16, batch_size=2)
    score = Score(documents=20, bytes=100, tokens=50, nll=40.0)
    return {
        "pilekit": pilekit,
        "path": str(corpus),
        "corpus": pilekit.Corpus(corpus),
        "batch": next(pilekit.read(corpus)),
        "stats": pilekit.corpus_stats(corpus),
        "selected": pilekit.select_corpus(corpus, folder / "selected", subsets=["ArXiv"]),
        "tokenizer": tokenizer,
        "stream": stream,
        "loader": stream.loader(),
        "rows": next(iter(stream)),
        "result": BitsPerByte(score, {"ArXiv": score}, {"model": {}}),
    }


@pytest.mark.parametrize(("guess", "answer"), GUESSES, ids=[guess for guess, _ in GUESSES])
def test_the_error_for_a_guess_names_the_right_word(things: dict[str, Any], guess: str, answer: str) -> None:
    # A folder of the package may have the name, if an earlier test imported it. Then its call names the function.
    is_folder = (Path(pilekit.__file__).parent / guess.removeprefix("pilekit.")).is_dir()
    with pytest.raises((AttributeError, TypeError, KeyError)) as raised:
        eval(f"{guess}()" if is_folder else guess, dict(things))
    assert answer in str(raised.value)


@pytest.mark.parametrize("guess", WORKS)
def test_a_guess_works(things: dict[str, Any], guess: str) -> None:
    eval(guess, dict(things))


@pytest.mark.parametrize(("guess", "answer"), CALLS, ids=[guess for guess, _ in CALLS])
def test_the_error_for_a_wrong_keyword_names_the_right_one(things: dict[str, Any], guess: str, answer: str) -> None:
    with pytest.raises(TypeError, match=r"^[\w.]+\(\) got an unexpected keyword argument '[\w-]+'; ") as raised:
        eval(guess, dict(things))
    name = guess.partition("(")[0].removeprefix("pilekit.").replace("stream.", "PileStream.")
    assert str(raised.value).startswith(f"{name}() got ")
    assert f"'; {answer}" in str(raised.value)


def test_an_import_of_a_wrong_name_names_the_right_one() -> None:
    with pytest.raises(ImportError, match=r"cannot import name 'DataLoader' from 'pilekit'.*did you mean PileStream\?"):
        from pilekit import DataLoader  # type: ignore[attr-defined]  # noqa: F401


def parameters_of_public_names() -> Iterator[str]:
    for value in (getattr(pilekit, name) for name in dir(pilekit)):
        if callable(value):
            methods = (method for _, method in inspect.getmembers(value, inspect.isfunction))
            for function in (value, *methods):
                yield from inspect.signature(function).parameters


def test_every_answer_is_a_name_or_a_keyword_of_pilekit(things: dict[str, Any]) -> None:
    names = set(dir(pilekit))
    for words in (guessed_words.COMMANDS, guessed_words.EARLIER, guessed_words.ELSEWHERE):
        assert set(words.values()) <= names
    assert not guessed_words.EARLIER.keys() & names
    keywords = {answer.partition("=")[0] for answer in guessed_words.KEYWORDS}
    assert {word for word in keywords if word.isidentifier()} <= {*parameters_of_public_names(), "cluster", "stages"}
    for kind, answers in guessed_words.WORDS.items():
        objects = {**things, "batch": things["rows"] if kind == "Batch" else things["batch"]}
        for answer in answers.values():
            if answer.partition(".")[0] in objects and answer.replace(".", "").isidentifier():
                eval(answer, objects)


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_leads_to_its_function(command: str) -> None:
    """Each of `x`, `x_corpus` and `corpus_x` is a public name, or its error names this public name."""
    x = command.replace("-", "_")
    for guess in {x, f"{x}_corpus", f"corpus_{x}"} - set(dir(pilekit)):
        answer = public_name(guess, dir(pilekit))
        if command not in COMMANDS_ALONE:
            assert answer.rpartition(f"`pilekit {command}` is pilekit.")[2] in dir(pilekit)
        elif guess == x:
            assert answer == f"; `pilekit {command}` is a command alone"


def test_a_name_that_is_a_folder_too_leads_to_the_function() -> None:
    """Before and after the folder is imported."""
    script = "import pilekit; print(hasattr(pilekit, 'stats')); pilekit.dedup"
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert process.stdout == "False\n"
    assert process.stderr.endswith("did you mean dedup_corpus? `pilekit dedup` is pilekit.dedup_corpus\n")
    importlib.import_module("pilekit.stats.summary")
    with pytest.raises(TypeError, match=r"pilekit\.stats is a module; did you mean corpus_stats"):
        pilekit.stats("data")  # type: ignore[operator]


def test_a_method_stays_what_it_is(things: dict[str, Any]) -> None:
    stream = type(things["stream"])
    assert str(inspect.signature(stream.peek)).startswith("(self, step: 'int', reached: ")
    assert stream.peek.__module__ == "pilekit.stream.pile_stream"
    assert stream.peek.__qualname__ == "PileStream.peek"
    assert things["corpus"].part(None) is not None
    assert pickle.loads(pickle.dumps(stream.peek)) is stream.peek


@pytest.mark.parametrize("name", [name for name in pilekit._HOME if name.islower()])
def test_a_function_stays_what_it_is(name: str) -> None:
    """The object that answers wrong keywords has the function's signature, text and name, and pickles as it does."""
    function = getattr(pilekit, name)
    original = getattr(importlib.import_module(pilekit._HOME[name]), name)
    assert inspect.signature(function) == inspect.signature(original)
    assert inspect.getsource(function) == inspect.getsource(original)
    assert (function.__doc__, function.__name__) == (original.__doc__, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(original)) is original
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '_not_there'"):
        function(_not_there=1)


ONLY_PRINTED = {
    "clean": {"n", "show"},
    "stats": {"plot"},
    "bpb": {"plot"},
    "memorised": {"plot"},
    "generate": {"out", "manifest"},
}
"""Options of a command that its function has no need of."""
OTHER_FUNCTIONS = {"duplicates", "grep", "head", "prune", "sample", "show", "stream", "train"}
"""Commands that do more than their function, or print what it gives."""


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - COMMANDS_ALONE - OTHER_FUNCTIONS))
def test_each_option_is_a_keyword_or_leads_to_it(command: str) -> None:
    function = getattr(pilekit, guessed_words.COMMANDS[command.replace("-", "_")])
    names = inspect.signature(function).parameters
    loaded = command_group.get_command(click.Context(command_group), command)
    assert loaded is not None
    options = [option for option in loaded.params if isinstance(option, click.Option)]
    for word in {option.opts[-1].strip("-").replace("-", "_") for option in options} - ONLY_PRINTED.get(command, set()):
        if word not in names and not (command == "dedup" and word == "part"):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{word}'; did you mean "):
                function(**{word: None})


def test_an_error_inside_a_property_keeps_its_words() -> None:
    class Broken(pilekit.Corpus):
        @property
        def late(self) -> int:
            return self.nothing_like_it  # type: ignore[attr-defined, no-any-return]

    broken = object.__new__(Broken)
    with pytest.raises(AttributeError, match="'nothing_like_it'"):
        broken.late  # noqa: B018
    assert not hasattr(broken, "_repr_png_")


def test_private_things_are_out_of_completion(things: dict[str, Any]) -> None:
    assert not {"begin", "pass_ended", "unrecorded_batches"} & set(dir(things["stream"]))
    for name in dir(pilekit):
        if inspect.isclass(value := getattr(pilekit, name)) and not issubclass(value, Exception):
            assert not [parameter for parameter in inspect.signature(value).parameters if parameter.startswith("_")]


def test_things_say_what_they_are(things: dict[str, Any]) -> None:
    assert repr(things["corpus"]).startswith("Corpus('")
    assert repr(things["batch"]).startswith("DocumentBatch(40 documents, 0-39 of '00.jsonl'")
    assert repr(things["rows"]).startswith("Batch(input_ids=int64[2, 16]")
    assert repr(things["loader"]).startswith("StreamLoader(PileStream(Corpus('")
    assert repr(things["loader"]).endswith("num_workers=0)")
    assert "<td>00.jsonl</td>" in things["corpus"]._repr_html_()
    assert "<td>document 0 has some words to read</td>" in things["batch"]._repr_html_()
    assert "<td>int64</td><td>[2, 16]</td>" in things["rows"]._repr_html_()
