"""A wrong name is answered with the right one: `pilekit.stats` with `corpus_stats`, `workers=2` with `jobs`.

People guess names by the commands of pilekit and by the words of other libraries. The tables here know these words, and
`difflib` knows misspellings. They are read when a name is wrong. A right name costs nothing more, but that a call with
keywords looks these up in a set.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from functools import cache, wraps
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

COMMANDS = {
    "assemble": "assemble_corpus",
    "bpb": "bits_per_byte",
    "clean": "clean_corpus",
    "decontaminate": "decontaminate_corpus",
    "dedup": "dedup_corpus",
    "demo": "demo_corpus",
    "duplicates": "DedupResult",
    "embed": "embed_corpus",
    "generate": "generate",
    "grep": "Match",
    "head": "read",
    "index": "index_corpus",
    "merge": "merge_token_files",
    "prune": "prune_model",
    "reframe": "reframe_corpus",
    "report": "write_report",
    "sample": "Sample",
    "select": "select_corpus",
    "show": "read_documents",
    "stats": "corpus_stats",
    "stream": "PileStream",
    "substrings": "substrings_corpus",
    "tokenize": "tokenize_corpus",
    "train": "Trainer",
    "train_tokenizer": "train_tokenizer",
    "verify": "verify_corpus",
}
"""What a command is called in Python."""

EARLIER = {
    "Cleaned": "CleanResult",
    "Decontaminated": "DropContaminated",
    "Decontamination": "DecontaminationResult",
    "Deduplicated": "DropDuplicates",
    "Deduplication": "DedupResult",
    "Finished": "TrainResult",
    "Pruned": "PruneResult",
    "Reframed": "ReframeResult",
    "Selected": "SelectResult",
    "StoredDocument": "Document",
    "Substrings": "SubstringResult",
    "cut_substrings": "substrings_corpus",
    "deduplicate": "dedup_corpus",
}
"""Names that pilekit had before."""

ELSEWHERE = {
    "autotokenizer": "load_tokenizer",
    "c4qualityfilter": "C4",
    "config": "load_config",
    "count": "corpus_stats",
    "dataloader": "PileStream",
    "dataset": "PileDocuments",
    "datatrove": "Pipeline",
    "evaluate": "bits_per_byte",
    "filter": "document_filter",
    "fit": "Trainer",
    "iterabledataset": "PileStream",
    "jsonlreader": "read",
    "jsonlwriter": "ShardWriter",
    "lambdafilter": "document_filter",
    "languagefilter": "Language",
    "load": "read",
    "loaddataset": "read",
    "loader": "PileStream",
    "localpipelineexecutor": "map_shards",
    "manifest": "load_manifest",
    "map": "document_map",
    "mdswriter": "ShardWriter",
    "minhash": "dedup_corpus",
    "open": "read",
    "parquetreader": "read",
    "perplexity": "bits_per_byte",
    "pile": "Corpus",
    "piledataset": "PileDocuments",
    "piiformatter": "RedactPII",
    "pretrainedtokenizer": "load_tokenizer",
    "reader": "read",
    "score": "bits_per_byte",
    "shards": "Corpus",
    "streamingdataset": "PileStream",
    "subsets": "resolve_subsets",
    "trainingarguments": "TrainConfig",
    "writer": "ShardWriter",
}
"""The words of other libraries, in lower case and without underscores."""

KEYWORDS = {
    "label": "label_field label_path subset_field",
    "text_field": "content_field text_column text_key",
    "Corpus(path, label=...)": "label label_field label_path subset_field",
    "Corpus(path, text_field=...)": "content_field text_column text_field text_key",
    "engine=Ray(address)": "address ray_address",
    "engine=Ray(scratch=...)": "scratch",
    "result.to_dict()": "as_json json to_json",
    "stages=[DropDuplicates(folder)]": "dedup masks",
    "write=False": "dry_run no_write",
    "advance": "callback on_progress progress progress_bar report verbose",
    "against": "benchmarks earlier evaluation evaluations previous",
    "append_eod": "add_eod add_eos add_eos_token append_eos",
    "batch_tokens": "batch_size tokens_per_batch",
    "corpus": "corpora data dataset files path paths source",
    "data": "corpora corpus dataset files local path paths remote source",
    "dtype": "precision torch_dtype",
    "engine": "backend cluster executor ray",
    "eod": "eod_token eos eos_token",
    "folder": "out output output_dir path",
    "frame_bytes": "chunk_size frame frame_size",
    "grad_accum": "accumulate_grad_batches gradient_accumulation_steps",
    "jobs": "cores cpus n_jobs nproc num_proc num_processes num_workers processes tasks threads workers",
    "level": "compression compression_level",
    "limit": "count max_documents max_samples n num_documents num_samples take",
    "magnitude": "amount sparsity",
    "max_length": "block_size context_length max_seq_len max_seq_length seq_len seq_length sequence_length",
    "max_new_tokens": "length max_length max_tokens",
    "memory": "max_memory mem memory_limit ram",
    "model": "checkpoint model_dir model_name_or_path model_path pretrained",
    "model_dir": "checkpoint model model_name_or_path model_path pretrained",
    "ngram": "n n_gram n_grams ngram_size ngrams shingle shingle_size",
    "num_perm": "hashes num_hashes num_permutations permutations",
    "on_error": "bad_lines errors ignore_errors skip skip_errors strict",
    "on_progress": "advance callback progress report",
    "out": "dest destination folder output output_dir output_folder output_path save_to",
    "pii": "email emails redact redact_pii",
    "pool": "pooling",
    "report": "advance callback progress progress_bar verbose",
    "rules": "filters quality rule",
    "sample": "frac fraction probability proportion rate",
    "sample_bytes": "bytes limit_bytes",
    "seed": "random_seed random_state rng shuffle_seed",
    "seq_len": "block_size context_length max_length max_seq_len max_seq_length seq_length sequence_length",
    "shard": "file path source",
    "source": "corpus data dataset file files path paths shard",
    "sources": "files inputs paths prefixes",
    "stages": "filters map pipeline steps transform",
    "subsets": "domains names pile_set_name subset",
    "sums": "checksums sha256 sha256sums",
    "threshold": "jaccard jaccard_threshold min_similarity similarity",
    "tokenizer": "tok tokenizer_file tokenizer_name tokenizer_path",
}
"""How a keyword is written that other libraries, or the commands, call by one of these words. Of two answers for a word
the first that a function takes counts."""


WORDS = {
    "Batch": {
        **{name: f'batch["{name}"]' for name in ("input_ids", "labels", "position_ids", "doc_ids", "subset_ids")},
        **dict.fromkeys(("text", "texts", "documents", "shard", "meta"), "batch.documents()"),
        "attention_mask": "document_mask(batch), or position_ids",
        **dict.fromkeys(("tokens", "ids", "token_ids"), 'batch["input_ids"]'),
        "targets": 'batch["labels"]',
    },
    "BitsPerByte": {
        **{name: f"result.overall.{name}" for name in ("bpb", "interval", "documents", "bytes", "tokens", "nll")},
        **dict.fromkeys(("total", "mean", "score"), "result.overall"),
        "perplexity": "result.overall.byte_perplexity",
        "scores": "result.subsets",
    },
    "Corpus": {
        **{command: f"pilekit.{name}" for command, name in COMMANDS.items()},
        **dict.fromkeys(("batches", "read", "text", "texts"), "corpus.documents() or pilekit.read(corpus)"),
        **dict.fromkeys(("files", "paths"), "corpus.shards"),
        **dict.fromkeys(("subset", "subsets"), "corpus_stats(corpus).subsets or read(corpus, subsets=...)"),
    },
    "CorpusStats": {
        **{name: f"stats.total.{name}" for name in ("bytes", "copies", "documents", "lengths", "tokens")},
        "shares": 'stats["ArXiv"].share',
    },
    "Document": {
        "content": "text",
        "id": "(document.shard, document.number)",
        "label": "subset",
        "metadata": "meta",
    },
    "DocumentBatch": {
        **dict.fromkeys(("id", "ids"), "batch.numbers"),
        **dict.fromkeys(("meta", "metadata"), "batch[0].meta"),
        **dict.fromkeys(("to_arrow", "to_pandas"), "batch.text_column"),
        "documents": "list(batch)",
        "filter": "batch.where",
        "map": "batch.with_texts",
    },
    "PileStream": {
        **dict.fromkeys(("mixture", "probabilities", "proportion"), "weights or repeats"),
        **dict.fromkeys(("collate_fn", "map", "transform"), "filters"),
        **dict.fromkeys(("dataloader", "num_workers", "prefetch_factor"), "stream.loader(num_workers=...)"),
        "num_canonical_nodes": "lanes",
        "shard": "rank and world_size",
        "shuffle": "PileStream(shuffle=..., seed=...)",
        "split": 'Corpus(path).split("train")',
        "take": "stream.peek",
    },
    "StreamLoader": {"batch_size": "loader.stream.batch_size", "dataset": "loader.stream"},
    "TableResult": {
        **dict.fromkeys(("dataframe", "df", "to_df", "to_pandas"), "result.to_arrow().to_pandas()"),
        **dict.fromkeys(("as_dict", "json", "to_json"), "result.to_dict()"),
        "to_polars": "polars.from_arrow(result.to_arrow())",
    },
    "Tokenizer": {
        **{f"{kind}_token_id": f"{kind}_id" for kind in ("bos", "eos", "mask", "pad")},
        "batch_encode_plus": "encode_batch",
        "convert_tokens_to_ids": "token_id",
        "get_vocab_size": "vocab_size",
        "name_or_path": "path",
        "tokenize": "encode",
    },
    "Trainer": {
        "args": "config",
        "evaluate": "pilekit.bits_per_byte",
        "model": "trainer.engine.lm.model",
        "output_dir": "out",
        "save_model": "trainer.fit().model",
        "train": "trainer.fit",
        "train_dataset": "[data] path of the config",
    },
    "bits_per_byte": {"by": "result.by(column)", "compare": "pilekit.compare([result, other])"},
    "clean_corpus": {
        **dict.fromkeys(("language_model", "language_score"), "language=Language(model)"),
        "bad_words": 'rules=["c4"]',
        "report": "out=None",
        "set": "rules={name: RULES}",
    },
    "embed_corpus": {"near": "result.near(shard, number)"},
    "generate": dict.fromkeys(
        ("data", "per_subset", "prompt_tokens", "subsets"), "prompts=prompts_of(data, tokenizer)"
    ),
    "load_config": dict.fromkeys(("overrides", "set"), "changes"),
}
"""By class or function: what people may look for there, as an attribute or a keyword, and how it is written."""


def nearest(word: str, known: Iterable[str], words: Mapping[str, str] = {}) -> str:
    """ "; did you mean ...?" for a wrong word, or an empty text. `words` are those of others."""
    from difflib import get_close_matches

    plain = _plain(word)
    meant = {_plain(other): name for other, name in words.items()}.get(plain)
    if meant is None:
        spelled = {_plain(name): name for name in known if not name.startswith("_")}
        close = get_close_matches(plain, spelled, n=2, cutoff=0.7)
        close = close or [name for name in spelled if len(plain) > 3 and plain in name][:3]
        meant = " or ".join(spelled[match] for match in close)
    return f"; did you mean {meant}?" if meant else ""


def nearest_of(word: str, known: Iterable[str]) -> str:
    """`nearest` without its semicolon, and all names, for a choice that an error should show whole."""
    near, names = nearest(word, known := list(known)).removeprefix("; "), ", ".join(known)
    return f"{near} There are {names}" if near else f"there are {names}"


def _plain(word: str) -> str:
    """A word as people remember it: `--held-out` is held_out and heldOut."""
    return word.lower().replace("_", "").replace("-", "")


def public_name(word: str, known: Iterable[str]) -> str:
    """The end of the message for a wrong name in the module `pilekit`, whose names are `known`."""
    if word in EARLIER:
        return f"; it is {EARLIER[word]} now"
    plain = _plain(word)
    for command, name in COMMANDS.items():
        if plain.removeprefix("corpus").removesuffix("corpus") == _plain(command):
            return f"; did you mean {name}? `pilekit {command.replace('_', '-')}` is pilekit.{name}"
    if plain in ("explore", "doctor"):
        return f"; `pilekit {plain}` is a command alone"
    return nearest(word, known, ELSEWHERE)


def command_name(word: str, known: Iterable[str]) -> str:
    """The end of the message for a wrong command; `known` are the commands."""
    of_function = {name: command.replace("_", "-") for command, name in COMMANDS.items()}
    others = {other: of_function[name] for other, name in (ELSEWHERE | EARLIER).items() if name in of_function}
    return nearest(word, known, others | of_function)


def wrong_attribute(thing: object, word: str) -> AttributeError:
    """The error for a wrong attribute of a public class."""
    answer = "" if word.startswith("_") else nearest(word, dir(thing), _words(type(thing)))
    return with_answer(f"{type(thing).__name__!r} object has no attribute {word!r}", answer)


def with_answer(message: str, answer: str) -> AttributeError:
    """The error of message and answer; without one, Python may add a suggestion of its own."""
    # Python knows misspellings only, and suggests nothing for an error with `obj` and no `name`.
    return AttributeError(message + answer, obj=WORDS) if answer else AttributeError(message)


def wrong_key(batch: Mapping[str, object], key: object) -> KeyError:
    """The error for a wrong key of a batch of tensors."""
    if isinstance(key, str):
        return KeyError(f"a batch has no {key!r}, it has {', '.join(batch)}{nearest(key, batch, WORDS['Batch'])}")
    return KeyError(f'batch[{key!r}]: a batch is a dict of tensors; did you mean batch["input_ids"][{key!r}]?')


class NearestNames:
    """The base of public classes: a wrong attribute, or a wrong keyword at construction, names the right one."""

    __slots__ = ()

    def __new__(cls, *arguments: object, **keywords: object) -> Self:  # noqa: D102
        if keywords:
            refuse_wrong_keywords(cls.__name__, keywords, _keywords(cls.__init__), _words(cls))
        return super().__new__(cls)

    if not TYPE_CHECKING:  # for type checkers, a wrong attribute is an error

        def __getattr__(self, word: str) -> Any:
            if hasattr(type(self), word):  # a property, or a field without a value, has failed: its own error counts
                return object.__getattribute__(self, word)
            raise wrong_attribute(self, word)


def _words(cls: type) -> dict[str, str]:
    return {word: meant for base in reversed(cls.__mro__) for word, meant in WORDS.get(base.__name__, {}).items()}


def with_nearest_keywords(function: F) -> F:
    """The function, whose error for a wrong keyword names the right one.

    Python imports it from `pilekit`, so that pickle finds this object there, and the original where it is written.
    """
    known = _keywords(function)

    @wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        __tracebackhide__ = True  # for IPython and pytest
        if not keywords.keys() <= known:
            refuse_wrong_keywords(function.__name__, keywords, known, WORDS.get(function.__name__, {}))
        return function(*arguments, **keywords)

    call.__module__ = "pilekit"
    return call  # type: ignore[return-value]


def refuse_wrong_keywords(name: str, keywords: Iterable[str], known: Collection[str], words: dict[str, str]) -> None:
    """TypeError if the function or class `name`, which takes `known`, is called with another keyword."""
    for word in keywords if known else ():
        if word not in known:
            # An answer is a keyword with or without a value, or another call, which any function may need.
            answers = {
                other: answer
                for answer, others in reversed(KEYWORDS.items())
                if (first := answer.partition("=")[0]) in known or not first.isidentifier()
                for other in others.split()
            }
            answer = nearest(word, known, answers | words) or f"; it takes {', '.join(known)}"
            raise TypeError(f"{name}() got an unexpected keyword argument {word!r}{answer}")


@cache
def _keywords(function: Callable[..., object]) -> KeysView[str]:
    """The keywords of a function; none if it takes any."""
    from inspect import Parameter, signature

    parameters = [one for one in signature(function).parameters.values() if one.name != "self"]
    takes_any = any(one.kind is Parameter.VAR_KEYWORD for one in parameters)
    return {one.name: None for one in parameters if not takes_any}.keys()


class Room(ModuleType):
    """A folder of pilekit whose name is a command, too. Calling it names the function."""

    def __call__(self, *arguments: object, **keywords: object) -> None:
        """Raise the TypeError."""
        command = self.__name__.rpartition(".")[2]
        raise TypeError(f"{self.__name__} is a module{public_name(command, ())}")
