"""pilekit: read, trust, count, cut, deduplicate, stream, train on and evaluate Pile-format corpora.

The public names load on first use, so `import pilekit` takes milliseconds. A command that only counts documents must
not wait seconds for a deep-learning library. For the same reason `from pilekit import *` leaves out the names that need
torch; import those by name.
"""

from __future__ import annotations

import importlib
import logging
import sys
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from pilekit.version import __version__ as __version__

for _name in ("torchao", "torch.utils._pytree"):  # transformers imports torchao, which warns of each CUDA library
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.ERROR)

if TYPE_CHECKING:
    from pilekit.assemble.assemble_corpus import AssembledCorpus as AssembledCorpus
    from pilekit.assemble.assemble_corpus import assemble_corpus as assemble_corpus
    from pilekit.assemble.demo import demo_corpus as demo_corpus
    from pilekit.corpus import Corpus as Corpus
    from pilekit.corpus import Manifest as Manifest
    from pilekit.corpus import Shard as Shard
    from pilekit.corpus import load_manifest as load_manifest
    from pilekit.corpus import resolve_subsets as resolve_subsets
    from pilekit.cutting.decontaminate import DropContaminated as DropContaminated
    from pilekit.cutting.decontaminate import decontaminate_corpus as decontaminate_corpus
    from pilekit.cutting.result import DecontaminationResult as DecontaminationResult
    from pilekit.cutting.result import SubstringResult as SubstringResult
    from pilekit.cutting.substrings import substrings_corpus as substrings_corpus
    from pilekit.dedup.drop_duplicates import DropDuplicates as DropDuplicates
    from pilekit.dedup.near_duplicates import NearDuplicates as NearDuplicates
    from pilekit.dedup.result import DedupResult as DedupResult
    from pilekit.dedup.run import dedup_corpus as dedup_corpus
    from pilekit.documents import Document as Document
    from pilekit.documents import DocumentBatch as DocumentBatch
    from pilekit.errors import PilekitError as PilekitError
    from pilekit.evaluate.bits_per_byte import bits_per_byte as bits_per_byte
    from pilekit.evaluate.embed_corpus import embed_corpus as embed_corpus
    from pilekit.evaluate.embeddings import Embeddings as Embeddings
    from pilekit.evaluate.generate import Continuation as Continuation
    from pilekit.evaluate.generate import Prompt as Prompt
    from pilekit.evaluate.generate import generate as generate
    from pilekit.evaluate.generate import prompts_of as prompts_of
    from pilekit.evaluate.results.compare import Comparison as Comparison
    from pilekit.evaluate.results.compare import compare as compare
    from pilekit.evaluate.results.result import BitsPerByte as BitsPerByte
    from pilekit.evaluate.results.result_folder import read_result as read_result
    from pilekit.evaluate.results.scores import Score as Score
    from pilekit.pipeline.cleaner import CleanResult as CleanResult
    from pilekit.pipeline.cleaning import clean_corpus as clean_corpus
    from pilekit.pipeline.functions import document_filter as document_filter
    from pilekit.pipeline.functions import document_map as document_map
    from pilekit.pipeline.language import Language as Language
    from pilekit.pipeline.pipeline import Pipeline as Pipeline
    from pilekit.pipeline.redact_pii import RedactPII as RedactPII
    from pilekit.pipeline.rules.c4 import C4 as C4
    from pilekit.pipeline.rules.fineweb import FineWeb as FineWeb
    from pilekit.pipeline.rules.gopher_quality import GopherQuality as GopherQuality
    from pilekit.pipeline.rules.gopher_repetition import GopherRepetition as GopherRepetition
    from pilekit.pipeline.selecting import SelectResult as SelectResult
    from pilekit.pipeline.selecting import select_corpus as select_corpus
    from pilekit.pipeline.stages import Match as Match
    from pilekit.pipeline.stages import MinBytes as MinBytes
    from pilekit.pipeline.stages import Sample as Sample
    from pilekit.pipeline.stages import Select as Select
    from pilekit.pipeline.stages import Write as Write
    from pilekit.report.page import write_report as write_report
    from pilekit.shards.index.build import index_corpus as index_corpus
    from pilekit.shards.index.format import ShardIndex as ShardIndex
    from pilekit.shards.random_access.document_reader import read_documents as read_documents
    from pilekit.shards.random_access.pile_documents import PileDocuments as PileDocuments
    from pilekit.shards.read.read_errors import BadLine as BadLine
    from pilekit.shards.read.read_errors import SkippedLines as SkippedLines
    from pilekit.shards.read.reader import read as read
    from pilekit.shards.read.reader import read_corpus as read_corpus
    from pilekit.shards.verify.findings import Finding as Finding
    from pilekit.shards.verify.verify import Verification as Verification
    from pilekit.shards.verify.verify import verify_corpus as verify_corpus
    from pilekit.shards.write.reframe import ReframeResult as ReframeResult
    from pilekit.shards.write.reframe import reframe_corpus as reframe_corpus
    from pilekit.shards.write.shard_writer import ShardWriter as ShardWriter
    from pilekit.stats.subset_stats import SubsetStats as SubsetStats
    from pilekit.stats.summary import CorpusStats as CorpusStats
    from pilekit.stats.summary import corpus_stats as corpus_stats
    from pilekit.stream.batch.attention_mask import document_mask as document_mask
    from pilekit.stream.batch.batch import Batch as Batch
    from pilekit.stream.pack.pack_stage import Pack as Pack
    from pilekit.stream.pile_stream import PileStream as PileStream
    from pilekit.tokenize import TokenBatch as TokenBatch
    from pilekit.tokenize import Tokenize as Tokenize
    from pilekit.tokenize import Tokenizer as Tokenizer
    from pilekit.tokenize import load_tokenizer as load_tokenizer
    from pilekit.tokenize import train_tokenizer as train_tokenizer
    from pilekit.tokenize.files.merge import MergedTokens as MergedTokens
    from pilekit.tokenize.files.merge import merge_token_files as merge_token_files
    from pilekit.tokenize.files.token_file import TokenFile as TokenFile
    from pilekit.tokenize.files.tokenize_corpus import TokenizedCorpus as TokenizedCorpus
    from pilekit.tokenize.files.tokenize_corpus import tokenize_corpus as tokenize_corpus
    from pilekit.train.config.file import load_config as load_config
    from pilekit.train.config.sections import TrainConfig as TrainConfig
    from pilekit.train.launch.notebook import notebook_launch as notebook_launch
    from pilekit.train.model.prune import PruneResult as PruneResult
    from pilekit.train.model.prune import prune_model as prune_model
    from pilekit.train.trainer import Trainer as Trainer
    from pilekit.train.trainer import TrainResult as TrainResult
    from pilekit.workers import Ray as Ray
    from pilekit.workers import map_shards as map_shards

_NAMES = {
    "pilekit.assemble.assemble_corpus": "AssembledCorpus assemble_corpus",
    "pilekit.assemble.demo": "demo_corpus",
    "pilekit.corpus": "Corpus Manifest Shard load_manifest resolve_subsets",
    "pilekit.cutting.decontaminate": "DropContaminated decontaminate_corpus",
    "pilekit.cutting.result": "DecontaminationResult SubstringResult",
    "pilekit.cutting.substrings": "substrings_corpus",
    "pilekit.dedup.run": "dedup_corpus",
    "pilekit.dedup.drop_duplicates": "DropDuplicates",
    "pilekit.dedup.result": "DedupResult",
    "pilekit.dedup.near_duplicates": "NearDuplicates",
    "pilekit.documents": "Document DocumentBatch",
    "pilekit.workers": "Ray map_shards",
    "pilekit.errors": "PilekitError",
    "pilekit.evaluate.bits_per_byte": "bits_per_byte",
    "pilekit.evaluate.embed_corpus": "embed_corpus",
    "pilekit.evaluate.embeddings": "Embeddings",
    "pilekit.evaluate.generate": "Continuation Prompt generate prompts_of",
    "pilekit.evaluate.results.compare": "Comparison compare",
    "pilekit.evaluate.results.result": "BitsPerByte",
    "pilekit.evaluate.results.result_folder": "read_result",
    "pilekit.evaluate.results.scores": "Score",
    "pilekit.pipeline.functions": "document_filter document_map",
    "pilekit.pipeline.pipeline": "Pipeline",
    "pilekit.pipeline.stages": "Match MinBytes Sample Select Write",
    "pilekit.pipeline.cleaner": "CleanResult",
    "pilekit.pipeline.cleaning": "clean_corpus",
    "pilekit.pipeline.language": "Language",
    "pilekit.pipeline.redact_pii": "RedactPII",
    "pilekit.pipeline.rules.c4": "C4",
    "pilekit.pipeline.rules.fineweb": "FineWeb",
    "pilekit.pipeline.rules.gopher_quality": "GopherQuality",
    "pilekit.pipeline.rules.gopher_repetition": "GopherRepetition",
    "pilekit.pipeline.selecting": "SelectResult select_corpus",
    "pilekit.report.page": "write_report",
    "pilekit.shards.index.build": "index_corpus",
    "pilekit.shards.index.format": "ShardIndex",
    "pilekit.shards.random_access.document_reader": "read_documents",
    "pilekit.shards.random_access.pile_documents": "PileDocuments",
    "pilekit.shards.read.read_errors": "BadLine SkippedLines",
    "pilekit.shards.read.reader": "read read_corpus",
    "pilekit.shards.verify.findings": "Finding",
    "pilekit.shards.verify.verify": "Verification verify_corpus",
    "pilekit.shards.write.reframe": "ReframeResult reframe_corpus",
    "pilekit.shards.write.shard_writer": "ShardWriter",
    "pilekit.stats.subset_stats": "SubsetStats",
    "pilekit.stats.summary": "CorpusStats corpus_stats",
    "pilekit.stream.batch.attention_mask": "document_mask",
    "pilekit.stream.batch.batch": "Batch",
    "pilekit.stream.pack.pack_stage": "Pack",
    "pilekit.stream.pile_stream": "PileStream",
    "pilekit.tokenize.files.merge": "MergedTokens merge_token_files",
    "pilekit.tokenize.files.token_file": "TokenFile",
    "pilekit.tokenize.files.tokenize_corpus": "TokenizedCorpus tokenize_corpus",
    "pilekit.tokenize": "TokenBatch Tokenize Tokenizer load_tokenizer train_tokenizer",
    "pilekit.train.config.file": "load_config",
    "pilekit.train.config.sections": "TrainConfig",
    "pilekit.train.launch.notebook": "notebook_launch",
    "pilekit.train.model.prune": "PruneResult prune_model",
    "pilekit.train.trainer": "TrainResult Trainer",
}
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}
_NEED_TORCH = {
    "Batch",
    "Continuation",
    "TrainResult",
    "Pack",
    "PileStream",
    "Prompt",
    "PruneResult",
    "Trainer",
    "bits_per_byte",
    "document_mask",
    "embed_corpus",
    "generate",
    "prompts_of",
    "prune_model",
}

__all__ = ["__version__", *sorted(set(_HOME) - _NEED_TORCH)]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise _wrong_name(name)
    value = getattr(importlib.import_module(home), name)
    if isinstance(value, FunctionType):
        from pilekit.display.wrong_names import with_nearest_keywords

        value = with_nearest_keywords(value)
    globals()[name] = value
    return value


def _wrong_name(name: str) -> Exception:
    """The error that names the right word, with `from pilekit import name` too."""
    from importlib.util import find_spec

    from pilekit.display.wrong_names import public_name, with_answer

    answer = "" if name.startswith("_") else public_name(name, _HOME)
    # Before an import statement asks for a name, it asks whether there is one, and would drop the answer.
    if answer and sys._getframe(2).f_code.co_name == "_handle_fromlist" and find_spec(f"pilekit.{name}") is None:
        return ImportError(f"cannot import name {name!r} from 'pilekit'{answer}", name="pilekit")
    return with_answer(f"module 'pilekit' has no attribute {name!r}", answer)


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOME])


class _Package(ModuleType):
    """This module. Python's import sets each imported folder here, and some have the name of a command."""

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is ModuleType and hasattr(value, "__path__"):  # a folder
            from pilekit.display.wrong_names import Room

            value.__class__ = Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
