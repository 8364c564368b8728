"""First guesses of people who know pilekit's commands and other libraries: each works, or its error names the word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pilekit
from pilekit.cli.main import COMMANDS
from tests.tokenize.making import byte_level_bpe

WORKS = None
COMMANDS_ALONE = {"doctor", "explore"}

# (what is typed, what its error must name; None: it works)
NAMES = [
    *[("pilekit." + name, WORKS) for name in ("generate", "train_tokenizer", "PilekitError", "Corpus", "Document")],
    ("pilekit.stats", "corpus_stats? `pilekit stats` is pilekit.corpus_stats"),
    ("pilekit.open", "read"),
    ("pilekit.load", "read"),
    ("pilekit.load_dataset", "read"),
    ("pilekit.load_corpus", "read_corpus"),
    ("pilekit.Dataset", "PileDocuments"),
    ("pilekit.StreamingDataset", "PileStream"),
    ("pilekit.IterableDataset", "PileStream"),
    ("pilekit.Pile", "Corpus"),
    ("pilekit.PileDataset", "PileDocuments"),
    ("pilekit.DataLoader", "PileStream"),
    ("pilekit.minhash", "dedup_corpus"),
    ("pilekit.MinHash", "dedup_corpus"),
    ("pilekit.AutoTokenizer", "load_tokenizer"),
    ("pilekit.evaluate", "bits_per_byte"),
    ("pilekit.perplexity", "bits_per_byte"),
    ("pilekit.BPB", "bits_per_byte"),
    ("pilekit.TrainingArguments", "TrainConfig"),
    ("pilekit.TrainerConfig", "TrainConfig"),
    ("pilekit.JsonlReader", "read"),
    ("pilekit.JsonlWriter", "ShardWriter"),
    ("pilekit.LambdaFilter", "document_filter"),
    ("pilekit.GopherQualityFilter", "GopherQuality"),
    ("pilekit.LanguageFilter", "Language"),
    ("pilekit.LocalPipelineExecutor", "map_shards"),
    ("pilekit.MDSWriter", "ShardWriter"),
    ("pilekit.PileError", "PilekitError"),
    ("pilekit.stat", "corpus_stats"),
    ("pilekit.deduplicate", "dedup_corpus"),
    ("pilekit.cut_substrings", "substrings_corpus"),
    ("pilekit.Deduplicated", "DropDuplicates"),
    ("pilekit.Decontaminated", "DropContaminated"),
    ("pilekit.Deduplication", "DedupResult"),
    ("pilekit.Decontamination", "DecontaminationResult"),
    ("pilekit.Substrings", "SubstringResult"),
    ("pilekit.Finished", "TrainResult"),
    ("pilekit.Cleaned", "CleanResult"),
    ("pilekit.Selected", "SelectResult"),
    ("pilekit.Reframed", "ReframeResult"),
    ("pilekit.Pruned", "PruneResult"),
    ("pilekit.StoredDocument", "Document"),
]

USES = [
    ("len(corpus)", WORKS),
    ("list(corpus)", WORKS),
    ("corpus.shards", WORKS),
    ("next(corpus.documents()).text", WORKS),
    ("[document for batch in pilekit.read(path) for document in batch]", WORKS),
    ("pilekit.Corpus(path, text_field='text', label='meta.pile_set_name')", WORKS),
    ("pilekit.Corpus(path, manifest='demo')", WORKS),
    ("corpus.subsets", "corpus_stats(corpus).subsets"),
    ("corpus.stats()", "pilekit.corpus_stats"),
    ("corpus.dedup()", "pilekit.dedup_corpus"),
    ("corpus.read()", "corpus.documents()"),
    ("corpus.files", "corpus.shards"),
    ("corpus.document", "documents"),
    ("pilekit.Corpus(path, text_key='text')", "text_field"),
    ("pilekit.Corpus(path, subset='ArXiv')", "subsets="),
    ("pilekit.Corpus(path, label_field='meta')", "label"),
    ("batch[0].text", WORKS),
    ("batch[0].meta", WORKS),
    ("batch[:2]", WORKS),
    ("batch.text", "texts"),
    ("batch['text']", "texts"),
    ("batch['texts']", "texts"),
    ("batch.subset", "subsets"),
    ("batch.metadata", "batch[0].meta"),
    ("batch.documents", "list(batch)"),
    ("batch.filter", "batch.where"),
    ("batch.to_pandas()", "batch.text_column"),
    ("batch[0].metadata", "meta"),
    ("batch[0].id", "(document.shard, document.number)"),
    ("batch[0].label", "subset"),
    ("stats['ArXiv'].documents", WORKS),
    ("stats['ArXiv'].tokens", WORKS),
    ("stats['Arxiv']", "ArXiv"),
    ("stats.documents", "stats.total.documents"),
    ("stats.to_pandas()", "to_arrow().to_pandas()"),
    ("stats.subset", "subsets"),
    ("pilekit.corpus_stats(path, manifest='pile')", WORKS),
    ("selected['ArXiv']", WORKS),
    ("selected['Arxiv']", "ArXiv"),
    ("selected.to_json()", "to_dict()"),
    ("tokenizer.encode('hi')", WORKS),
    ("tokenizer.decode(tokenizer.encode('hi'))", WORKS),
    ("tokenizer.eos_token_id", "eos_id"),
    ("tokenizer.tokenize('hi')", "encode"),
    ("tokenizer.get_vocab_size()", "vocab_size"),
    ("pilekit.Tokenizer(tokenizer.path)", "load_tokenizer(path)"),
    ("pilekit.load_tokenizer(tokenizer.path)", WORKS),
    ("stream.state_dict()", WORKS),
    ("stream.loader().state_dict()", WORKS),
    ("next(iter(stream.loader()))['input_ids']", WORKS),
    ("pilekit.PileStream(path, tokenizer)", WORKS),
    ("pilekit.PileStream(path, tokenizer, seq_len=64, batch_size=2, seed=1, subsets=['ArXiv'])", WORKS),
    ("pilekit.PileStream(path, tokenizer, manifest='pile')", WORKS),
    ("pilekit.PileStream(path, tokenizer, seq_length=64)", "seq_len"),
    ("pilekit.PileStream(path, tokenizer, context_length=64)", "seq_len"),
    ("pilekit.PileStream(path, tokenizer, max_length=64)", "seq_len"),
    ("pilekit.PileStream(path, tokenizer, num_workers=2)", "stream.loader(num_workers=...)"),
    ("pilekit.PileStream(path, tokenizer, subset='ArXiv')", "subsets"),
    ("pilekit.PileStream(path, tokenizer, shuffle_seed=1)", "seed"),
    ("pilekit.PileStream(path, tokenizer, gradient_accumulation_steps=2)", "grad_accum"),
    ("pilekit.PileStream(path, tokenizer, proportion=0.5)", "weights"),
    ("pilekit.PileStream(path, tokenizer, epoch=1)", "epochs"),
    ("stream.shuffle()", "PileStream(shuffle=..., seed=...)"),
    ("stream.dataloader()", "stream.loader"),
    ("stream.take(3)", "stream.peek"),
    ("stream.loader().dataset", "loader.stream"),
    ("rows.input_ids", 'batch["input_ids"]'),
    ("rows['text']", "batch.documents()"),
    ("rows['attention_mask']", "document_mask"),
    ("rows['token_ids']", "input_ids"),
    ("rows[0]", 'batch["input_ids"][0]'),
    ("rows.text", "batch.documents()"),
    ("rows.documents()[0]", WORKS),
    ("pilekit.PileDocuments(path)[0].text", WORKS),
    ("pilekit.PileDocuments(path, subset='ArXiv')", "subsets"),
    ("pilekit.MinBytes(min_bytes=10)", "minimum"),
    ("result.overall.bpb", WORKS),
    ("result['ArXiv'].bpb", WORKS),
    ("result.bpb", "result.overall.bpb"),
    ("result.subset", "subsets"),
    ("result['arxiv']", "ArXiv"),
    ("result.to_pandas()", "to_arrow().to_pandas()"),
    ("pilekit.load_manifest(text_field='content')", WORKS),
    ("pilekit.resolve_subsets('github', manifest='pile')", WORKS),
    ("list(pilekit.read_documents(path + '/00.jsonl', [0], manifest='pile'))", WORKS),
]

CALLS = [
    ("corpus_stats(path, jobs=1)", WORKS),
    ("corpus_stats(path, job=2)", "jobs"),
    ("corpus_stats(path, workers=2)", "jobs"),
    ("corpus_stats(path, num_proc=2)", "jobs"),
    ("corpus_stats(path, num_workers=2)", "jobs"),
    ("corpus_stats(path, label='lang')", "Corpus(path, label=...)"),
    ("corpus_stats(path, text_key='content')", "Corpus(path, text_field=...)"),
    ("corpus_stats(dataset=path)", "corpus"),
    ("corpus_stats(path, json=True)", "result.to_dict()"),
    ("corpus_stats(path, address='auto')", "cluster=Ray(address)"),
    ("corpus_stats(path, nothing_of_the_kind=1)", "; it takes corpus, subsets, tokenizer, "),
    ("dedup_corpus(path, treshold=0.8)", "threshold"),
    ("dedup_corpus(path, jaccard_threshold=0.8)", "threshold"),
    ("dedup_corpus(path, num_permutations=128)", "num_perm"),
    ("dedup_corpus(path, n_grams=5)", "ngram"),
    ("dedup_corpus(path, **{'held-out': 'include'})", "held_out"),
    ("dedup_corpus(path, heldOut='include')", "held_out"),
    ("dedup_corpus(path, no_write=True)", "write=False"),
    ("dedup_corpus(path, output_dir='D')", "out"),
    ("bits_per_byte('m', corpora=path)", "data"),
    ("bits_per_byte('m', path, tokeniser=tokenizer)", "tokenizer"),
    ("bits_per_byte(model_dir='m')", "model"),
    ("bits_per_byte('m', path, batch_size=8)", "batch_tokens"),
    ("bits_per_byte('m', path, seq_len=512)", "max_length"),
    ("read(path, on_errors='skip')", "on_error"),
    ("read(file=path)", "source"),
    ("select_corpus(path, 'D', random_state=1)", "seed"),
    ("select_corpus(path, 'D', fraction=0.1)", "sample"),
    ("tokenize_corpus(path, 'D', tokenizer, add_eos=True)", "append_eod"),
    ("tokenize_corpus(path, 'D', tokenizer, dedup='unique')", "stages=[DropDuplicates(folder)]"),
    ("generate('m', ['a'], max_tokens=5)", "max_new_tokens"),
    ("generate('m', data=path)", "prompts=prompts_of(data, tokenizer)"),
    ("clean_corpus(path, language_model='lid.bin')", "language=Language(model)"),
    ("reframe_corpus(path, 'D', compression_level=3)", "level"),
    ("train_tokenizer(path, vocabulary_size=300, out='t')", "vocab_size"),
    ("load_config('run.toml', overrides=[])", "changes"),
    ("load_manifest(text_key='content')", "text_field"),
    ("Pack(max_length=64)", "seq_len"),
    ("Pipeline(steps=[])", "stages"),
    ("Ray(adress='auto')", "address"),
    ("ShardWriter('a.jsonl.zst', compression_level=3)", "level"),
    ("Tokenize(tokenizer_file='a.json')", "tokenizer"),
]
"""Keywords of functions and classes."""


METHODS = [
    ("stream.loader(workers=2)", "StreamLoader", "num_workers"),
    ("stream.peek(stp=3)", "PileStream.peek", "step"),
    ("stream.load_state_dict({}, strickt=False)", "PileStream.load_state_dict", "strict"),
    ("stream.set_epoch(epochs=3)", "PileStream.set_epoch", "epoch"),
    ("pilekit.PileStream.merge_state_dicts(part=[])", "PileStream.merge_state_dicts", "parts"),
    ("pilekit.Corpus.of(path, manifests=None)", "Corpus.of", "manifest"),
    ("corpus.part(parts=(1, 2))", "Corpus.part", "part"),
    ("rows.to('cpu', nonblocking=True)", "Batch.to", "non_blocking"),
    ("tokenizer.encode_batch(text=['a'])", "Tokenizer.encode_batch", "texts"),
]
"""Keywords of methods."""


@pytest.fixture(scope="module")
def things(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a session has at hand, by name."""
    from pilekit.evaluate.results.result import BitsPerByte
    from pilekit.evaluate.results.scores import Score

    folder = tmp_path_factory.mktemp("guesses")
    texts = [f"document {number} has some words to read" for number in range(40)]
    corpus = folder / "data"
    corpus.mkdir()
    labels = ["ArXiv", "Github"] * 20
    import orjson

    lines = [{"text": t, "meta": {"pile_set_name": s}} for t, s in zip(texts, labels, strict=True)]
    (corpus / "00.jsonl").write_bytes(b"\n".join(map(orjson.dumps, lines)))
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
        "rows": next(iter(stream)),
        "result": BitsPerByte(score, {"ArXiv": score}, {"model": {}}),
    }


def answer(expression: str, names: dict[str, Any]) -> str | None:
    """None if the expression works, else its error."""
    try:
        eval(expression, names)
    except (AttributeError, TypeError, KeyError) as error:
        return str(error)
    return None


@pytest.mark.parametrize(("guess", "word"), USES, ids=[guess for guess, _ in USES])
def test_a_guessed_use_works_or_its_error_names_the_word(things: dict[str, Any], guess: str, word: str | None) -> None:
    found = answer(guess, dict(things))
    assert found is None if word is None else found is not None and word in found, found


@pytest.mark.parametrize(("guess", "word"), CALLS, ids=[guess for guess, _ in CALLS])
def test_a_guessed_keyword_works_or_its_error_names_the_word(
    things: dict[str, Any], guess: str, word: str | None
) -> None:
    found = answer(f"pilekit.{guess}", dict(things))
    if word is None:
        assert found is None
    else:
        word = word if word.startswith(";") else f"; did you mean {word}?"
        name = guess.partition("(")[0]
        assert found is not None
        assert found.startswith(f"{name}() got an unexpected keyword argument '"), found
        assert word in found, found


@pytest.mark.parametrize(("guess", "name", "word"), METHODS, ids=[guess for guess, *_ in METHODS])
def test_a_guessed_keyword_of_a_method_names_the_word(things: dict[str, Any], guess: str, name: str, word: str) -> None:
    found = answer(guess, dict(things))
    assert found is not None
    assert found.startswith(f"{name}() got an unexpected keyword argument '"), found
    assert found.endswith(f"did you mean {word}?"), found


def test_a_method_stays_what_it_is(things: dict[str, Any]) -> None:
    import inspect
    import pickle

    stream = type(things["stream"])
    assert str(inspect.signature(stream.peek)).startswith("(self, step: 'int', reached: ")
    assert stream.peek.__module__ == "pilekit.stream.pile_stream"
    assert stream.peek.__qualname__ == "PileStream.peek"
    assert things["corpus"].part(None) is not None
    assert pickle.loads(pickle.dumps(stream.peek)) is stream.peek


ONLY_PRINTED = {"clean": {"n", "show"}, "stats": {"plot"}, "bpb": {"plot"}, "generate": {"out", "manifest"}}
"""Options of a command that its function has no need of."""
OTHER_FUNCTIONS = {"duplicates", "grep", "head", "prune", "sample", "show", "stream", "train"}
"""Commands that do more than their function, or print what it gives."""


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - COMMANDS_ALONE - OTHER_FUNCTIONS))
def test_each_option_is_a_keyword_or_leads_to_it(command: str) -> None:
    import inspect

    import click

    from pilekit.cli.main import pilekit as group
    from pilekit.display.guessed_words import COMMANDS as FUNCTIONS

    function = getattr(pilekit, FUNCTIONS[command.replace("-", "_")])
    known = inspect.signature(function).parameters
    loaded = group.get_command(click.Context(group), command)
    assert loaded is not None
    options = [option for option in loaded.params if isinstance(option, click.Option)]
    for word in {option.opts[-1].strip("-").replace("-", "_") for option in options} - ONLY_PRINTED.get(command, set()):
        if word not in known and not (command == "dedup" and word == "part"):
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{word}'; did you mean "):
                function(**{word: None})


@pytest.mark.parametrize("name", [name for name in pilekit._HOME if name.islower()])
def test_a_function_stays_what_it_is(name: str) -> None:
    """The object that answers wrong keywords has the function's signature, text and name, and pickles as it does."""
    import importlib
    import inspect
    import pickle

    function = getattr(pilekit, name)
    written = getattr(importlib.import_module(pilekit._HOME[name]), name)
    assert inspect.signature(function) == inspect.signature(written)
    assert inspect.getsource(function) == inspect.getsource(written)
    assert (function.__doc__, function.__name__) == (written.__doc__, name)
    assert pickle.loads(pickle.dumps(function)) is function
    assert pickle.loads(pickle.dumps(written)) is written
    with pytest.raises(TypeError, match=rf"^{name}\(\) got an unexpected keyword argument '_not_there'"):
        function(_not_there=1)


@pytest.mark.parametrize(("guess", "word"), NAMES, ids=[guess for guess, _ in NAMES])
def test_a_guessed_name_works_or_its_error_names_the_word(guess: str, word: str | None) -> None:
    found = answer(guess, {"pilekit": pilekit})
    if word is not None and found is None:  # a folder of the package is called so, and an earlier test imported it
        found = answer(f"{guess}()", {"pilekit": pilekit})
    assert found is None if word is None else found is not None and word in found, found
    name = guess.removeprefix("pilekit.")
    if word is not None and not (Path(pilekit.__file__).parent / name).is_dir():
        with pytest.raises(ImportError, match=f"cannot import name '{name}' from 'pilekit'.*{word.split('?')[0]}"):
            exec(f"from pilekit import {name}")


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_leads_to_its_function(command: str) -> None:
    """Each of `x`, `x_corpus` and `corpus_x` is a public name, or its error names this public name."""
    x = command.replace("-", "_")
    for guess in (x, f"{x}_corpus", f"corpus_{x}"):
        if guess in dir(pilekit):
            continue
        code = f"import pilekit\npilekit.{guess}"
        told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr
        if command in COMMANDS_ALONE and guess == x:
            assert f"`pilekit {command}` is a command alone" in told
        elif command not in COMMANDS_ALONE:
            name = told.rpartition(f"`pilekit {command}` is pilekit.")[2].strip()
            assert name in dir(pilekit), told


def test_a_folder_called_like_a_command_names_the_function() -> None:
    import pilekit.dedup.run
    import pilekit.stats.summary

    with pytest.raises(TypeError, match=r"pilekit\.stats is a module; did you mean corpus_stats"):
        pilekit.stats("data")  # type: ignore[operator]
    with pytest.raises(TypeError, match=r"pilekit\.dedup is a module; did you mean dedup_corpus"):
        pilekit.dedup("data")  # type: ignore[operator]


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
    import inspect

    shown = {name for name in dir(things["stream"]) if not name.startswith("_")}
    assert not {"begin", "pass_ended", "unrecorded_batches"} & shown
    for name in dir(pilekit):
        if inspect.isclass(value := getattr(pilekit, name)) and not issubclass(value, Exception):
            parameters = inspect.signature(value).parameters
            assert not [one for one in parameters if one.startswith("_")], name


def test_things_say_what_they_are(things: dict[str, Any]) -> None:
    loader = things["stream"].loader()
    assert repr(things["corpus"]).startswith("Corpus('")
    assert repr(things["batch"]).startswith("DocumentBatch(39 documents, 0-38 of '00.jsonl'")
    assert repr(things["rows"]).startswith("Batch(input_ids=int64[2, 16]")
    assert repr(loader).startswith("StreamLoader(PileStream(Corpus('")
    assert repr(loader).endswith("num_workers=0)")
    assert "<td>00.jsonl</td>" in things["corpus"]._repr_html_()
    assert "<td>document 0 has some words to read</td>" in things["batch"]._repr_html_()
    assert "<td>int64</td><td>[2, 16]</td>" in things["rows"]._repr_html_()
