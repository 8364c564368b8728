"""A wrong name is answered with the right one: `pilekit.stats` with `corpus_stats`, `corpus.shard` with `shards`.

People guess names by the commands of pilekit and by the words of other libraries. The tables here know these words, and
`difflib` knows misspellings. Nothing here runs until a name is wrong, and a right name costs nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, Self

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
        **dict.fromkeys(("label_field", "label_path", "subset_field"), "label"),
        **dict.fromkeys(("content_field", "text_column", "text_key"), "text_field"),
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
        **dict.fromkeys(("block_size", "context_length", "max_length", "max_seq_len", "sequence_length"), "seq_len"),
        **dict.fromkeys(("corpus", "dataset", "local", "path", "paths", "remote"), "data"),
        **dict.fromkeys(("mixture", "probabilities", "proportion"), "weights or repeats"),
        **dict.fromkeys(("collate_fn", "map", "transform"), "filters"),
        **dict.fromkeys(("dataloader", "num_workers", "prefetch_factor"), "stream.loader(num_workers=...)"),
        **dict.fromkeys(("gradient_accumulation_steps",), "grad_accum"),
        "num_canonical_nodes": "lanes",
        "shard": "rank and world_size",
        "shuffle": "PileStream(shuffle=..., seed=...)",
        "shuffle_seed": "seed",
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
}
"""By class: what people may look for there, as an attribute or a keyword, and how it is written."""


def nearest(word: str, known: Iterable[str], words: Mapping[str, str] = {}) -> str:
    """ "; did you mean ...?" for a wrong word, or an empty text. `words` are those of others."""
    from difflib import get_close_matches

    meant = words.get(word)
    if meant is None:
        plain = word.lower().replace("_", "")
        spelled = {name.lower().replace("_", ""): name for name in known if not name.startswith("_")}
        close = get_close_matches(plain, spelled, n=2, cutoff=0.7)
        close = close or [name for name in spelled if len(plain) > 3 and plain in name][:3]
        meant = " or ".join(spelled[match] for match in close)
    return f"; did you mean {meant}?" if meant else ""


def public_name(word: str, known: Iterable[str]) -> str:
    """The end of the message for a wrong name in the module `pilekit`, whose names are `known`."""
    if word in EARLIER:
        return f"; it is {EARLIER[word]} now"
    plain = word.lower().replace("_", "")
    for command, name in COMMANDS.items():
        if plain.removeprefix("corpus").removesuffix("corpus") == command.replace("_", ""):
            return f"; did you mean {name}? `pilekit {command.replace('_', '-')}` is pilekit.{name}"
    if plain in ("explore", "doctor"):
        return f"; `pilekit {plain}` is a command alone"
    return nearest(word, known, {word: ELSEWHERE[plain]} if plain in ELSEWHERE else {})


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
        known = _keywords(cls) if keywords else ()  # type: ignore[arg-type]
        for word in keywords if known else ():
            if word not in known:
                answer = nearest(word, known, _words(cls)) or f"; it takes {', '.join(sorted(known))}"
                raise TypeError(f"{cls.__name__}() got an unexpected keyword argument {word!r}{answer}")
        return super().__new__(cls)

    if not TYPE_CHECKING:  # for type checkers, a wrong attribute is an error

        def __getattr__(self, word: str) -> Any:
            if hasattr(type(self), word):  # a property, or a field without a value, has failed: its own error counts
                return object.__getattribute__(self, word)
            raise wrong_attribute(self, word)


def _words(cls: type) -> dict[str, str]:
    return {word: meant for base in reversed(cls.__mro__) for word, meant in WORDS.get(base.__name__, {}).items()}


@cache
def _keywords(cls: type) -> frozenset[str]:
    """The keywords of the constructor; none if it takes any."""
    from inspect import Parameter, signature

    parameters = list(signature(cls.__init__).parameters.values())[1:]  # type: ignore[misc]
    takes_any = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
    return frozenset() if takes_any else frozenset(parameter.name for parameter in parameters)


class Room(ModuleType):
    """A folder of pilekit whose name is a command, too. Calling it names the function."""

    def __call__(self, *arguments: object, **keywords: object) -> None:
        """Raise the TypeError."""
        command = self.__name__.rpartition(".")[2]
        raise TypeError(f"{self.__name__} is a module{public_name(command, ())}")
