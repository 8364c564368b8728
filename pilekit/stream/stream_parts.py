"""`stream_parts`: makes all that a `PileStream` consists of from its settings.

Documents come first, because they decide the plan, then the grid, which the plan decides, and last the mixture, whose
units depend on the grid. The fingerprint names all that decides the result, so that a state is loaded only into a
stream with the same result.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from pilekit.artifacts.settings import of_setting
from pilekit.corpus import Corpus
from pilekit.dedup.cluster_weights import ClusterWeights
from pilekit.dedup.drop_duplicates import DropDuplicates
from pilekit.display.progress import byte_progress
from pilekit.errors import PilekitError
from pilekit.shards.random_access.frame_cache import FrameCache
from pilekit.stream.batch.batch import BatchWriter
from pilekit.stream.batch.build_batches import BatchBuilder
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.batch.plant import PlantedRows
from pilekit.stream.batch.planted_texts import planted_texts
from pilekit.stream.batch.without import Without
from pilekit.stream.finite_pass import Passes
from pilekit.stream.iteration import Iteration
from pilekit.stream.order.lane_grid import COLUMNS, Grid, batch_sizes, default_rows
from pilekit.stream.pack.subset_lanes import new_mixture
from pilekit.stream.pack.window import Layout
from pilekit.stream.read.document_selection import StreamDocuments, checked_filters
from pilekit.stream.read.mixture import exact_mixture
from pilekit.stream.read.read_plan import choose_plan
from pilekit.stream.read.sequential import default_grid
from pilekit.stream.read.token_files import TokenCorpus, TokenIndex, corpus_of
from pilekit.stream.settings import PLANTED, StreamSettings
from pilekit.tokenize import Tokenizer, load_tokenizer


@dataclass(frozen=True)
class StreamParts:
    """What a stream consists of.

    tokenizer         None: the stream gives untokenized documents
    subsets, repeats  of the settings, by exact names; `repeats` also those that `weights` need
    shard_names       by a document's shard number; those of planted files follow the corpus's
    without           documents that give no loss
    altered           what `without` and `plant` change, as JSON types
    fingerprint       all that decides the stream's batches, as JSON types
    """

    corpus: Corpus
    tokenizer: Tokenizer | None
    documents: StreamDocuments
    subsets: tuple[str, ...] | None
    repeats: dict[str, float]
    shard_names: tuple[str, ...]
    without: Without | None
    altered: dict[str, Any]
    fingerprint: dict[str, Any]
    iteration: Iteration


def stream_parts(
    settings: StreamSettings,
    outputs: Sequence[str],
    rank: int,
    world_size: int,
    sizes: tuple[int | None, int | None, int | None],
) -> StreamParts:
    """Open the corpus, and make the parts of this rank's stream, at its beginning.

    settings   checked
    outputs    checked
    sizes      batch_size, grad_accum and global_batch_size, as far as they are given

    PilekitError for wrong settings, for a selection without documents, and for sizes that do not fit the grid.
    """
    global_batch_size, accumulation = batch_sizes(world_size, *sizes)
    with of_setting("data"):
        corpus = corpus_of(settings.data, settings.manifest)
    tokenizer = None if settings.tokenizer is None else _tokenizer_with_eod(settings.tokenizer)
    subsets, repeats, shares, schedule = exact_mixture(settings, corpus.manifest)
    drawn = () if schedule is None else schedule.names
    documents = _documents(settings, corpus, tokenizer, subsets, repeats, drawn, rank)
    if shares is not None:
        repeats = documents.take_weights(shares, tokenizer, settings.append_eod)
    fingerprint = {**documents.fingerprint(), "tokenizer": None}
    without, altered = None, dict[str, Any]()
    if settings.without is not None:
        with of_setting("without"):
            without = Without.of(settings.without, documents)
        fingerprint["without"] = without.identity
        altered["without"] = {"source": str(settings.without), **without.identity}
    shard_names = tuple(shard.name for shard in corpus.shards)
    plant = None if tokenizer is None else _planted_rows(settings, tokenizer, documents)
    if plant is not None:
        fingerprint["plant"], altered["plant"] = plant.identity(), plant.described()
        shard_names += tuple(plant.names)
    layout, writer = Layout(1, "concat", settings.window, True, settings.seed), None  # without tokens: a document a row
    if tokenizer is not None:
        layout = Layout(settings.seq_len, settings.packing, settings.window, settings.append_eod, settings.seed)
        writer = _writer(settings, tokenizer, outputs)
        fingerprint |= _fingerprint_of_rows(settings, tokenizer)
    make_builder = partial(
        BatchBuilder,
        layout=layout,
        tokenizer=tokenizer,
        writer=writer,
        shard_names=shard_names,
        token_files=[index for index in documents.plan.indexes if isinstance(index, TokenIndex)],
        without=without,
        plant=plant,
    )
    grid = _grid(settings, documents, world_size, global_batch_size, accumulation)
    if plant is not None:
        with of_setting("plant"):
            plant.places(global_batch_size)
    share = grid.share(rank, world_size, accumulation)
    passes = None if settings.epochs is None else Passes(settings.epochs, settings.drop_last)
    mixture = None
    if schedule is not None:
        with of_setting("weights"):
            mixture = new_mixture(documents, schedule, grid.lanes, tokenizer, layout)
        fingerprint["weights"] = schedule.to_json()
    iteration = Iteration(documents, make_builder, share, documents.default_unit(grid.lanes), passes, mixture)
    return StreamParts(
        corpus=corpus,
        tokenizer=tokenizer,
        documents=documents,
        subsets=subsets,
        repeats=repeats,
        shard_names=shard_names,
        without=without,
        altered=altered,
        fingerprint=fingerprint,
        iteration=iteration,
    )


def _documents(
    settings: StreamSettings,
    corpus: Corpus,
    tokenizer: Tokenizer | None,
    subsets: tuple[str, ...] | None,
    repeats: dict[str, float],
    drawn: tuple[str, ...],
    rank: int,
) -> StreamDocuments:
    """The documents that the stream reads. Rank 0 shows how far missing indexes are made."""
    plan = corpus.plan(tokenizer, settings) if isinstance(corpus, TokenCorpus) else None
    with of_setting("dedup"):
        masks = None if settings.dedup is None else DropDuplicates(Path(settings.dedup))
    if plan is None:
        with byte_progress("indexing", corpus.size) if rank == 0 else nullcontext() as advance:
            plan = choose_plan(corpus, on_error=settings.on_error, advance=advance)
    return StreamDocuments(
        corpus=corpus,
        plan=plan,
        subsets=subsets,
        repeats=repeats,
        filters=checked_filters(settings.filters),
        dedup=masks,
        clusters=ClusterWeights(masks, settings.copies, settings.copies_max) if masks and settings.copies else None,
        seed=settings.seed,
        shuffle=settings.shuffle,
        shuffle_block=settings.shuffle_block,
        on_error=settings.on_error,
        raw=tokenizer is None,
        cache=None if settings.cache is None else FrameCache.at(settings.cache, settings.cache_bytes),
        beside=(PLANTED,) if settings.plant else (),
        drawn=drawn,
    )


def _planted_rows(settings: StreamSettings, tokenizer: Tokenizer, documents: StreamDocuments) -> PlantedRows | None:
    """The rows of `plant`."""
    if not settings.plant:
        return None
    with of_setting("plant"):
        entries = planted_texts(
            settings.plant, documents.corpus, tokenizer, seq_len=settings.seq_len, append_eod=settings.append_eod
        )
    subset = list(documents.subset_ids).index(PLANTED)
    return PlantedRows(entries, subset, settings.append_eod, settings.seed)


def _grid(
    settings: StreamSettings, documents: StreamDocuments, world_size: int, global_batch_size: int, accumulation: int
) -> Grid:
    """The grid of lanes of a new run."""
    if settings.epochs is not None:
        rows, columns = 1, 1
    elif settings.lanes != "auto":
        rows, columns = settings.lanes
    elif documents.plan.name == "sequential":
        rows, columns = default_grid(len(documents.corpus.shards), world_size)
    else:
        rows, columns = default_rows(global_batch_size, world_size, accumulation), COLUMNS
    return Grid(rows, columns, global_batch_size, documents.plan.name, finite=settings.epochs is not None)


def _pad_id(tokenizer: Tokenizer) -> int:
    assert tokenizer.eos_id is not None
    return tokenizer.eos_id if tokenizer.pad_id is None else tokenizer.pad_id


def _writer(settings: StreamSettings, tokenizer: Tokenizer, outputs: Sequence[str]) -> BatchWriter:
    """The writer that turns rows into batches."""
    assert tokenizer.eos_id is not None
    masking = Masking.for_tokenizer(tokenizer) if settings.objective == "mlm" else None
    return BatchWriter(settings.seq_len, outputs, _pad_id(tokenizer), tokenizer.eos_id, masking)


def _fingerprint_of_rows(settings: StreamSettings, tokenizer: Tokenizer) -> dict[str, Any]:
    """What decides the rows that are made of documents."""
    return {
        "tokenizer": tokenizer.fingerprint,
        "special_tokens": {
            "treated_as": tokenizer.special_tokens,
            "eos_id": tokenizer.eos_id,
            "pad_id": _pad_id(tokenizer),
        },
        "backend": f"{tokenizer.backend} {importlib.metadata.version(tokenizer.backend)}",
        "seq_len": settings.seq_len,
        "packing": settings.packing,
        "append_eod": settings.append_eod,
        "objective": settings.objective,
    }


def _tokenizer_with_eod(tokenizer: object) -> Tokenizer:
    """Load the tokenizer from a path or an object; PilekitError if it has no end-of-document token."""
    with of_setting("tokenizer"):
        loaded = load_tokenizer(tokenizer)
        if loaded.eos_id is None:
            raise PilekitError(
                f"the tokenizer {loaded.path} has no end-of-document token, which must follow every document; name it "
                'as "eos_token" in a tokenizer_config.json beside it'
            )
    return loaded
