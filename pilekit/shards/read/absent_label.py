"""If no record has the requested label or field, a command names the fields that the records have.

At its end, a pass knows the labels that it met. So an index, the compiled scan and the parser agree. A pass that reads
only some subsets and finds none of them has met no label, so the first records are judged instead. These are read again
only for the message, which names the fields of the first one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Any

from pilekit.corpus import UNLABELLED, Corpus, Manifest, Shard
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.errors import PilekitError, message_logger, shortened
from pilekit.shards.read.blocks import shard_blocks
from pilekit.shards.read.json_records import label_of, records_of
from pilekit.shards.read.lines import numbered_parts
from pilekit.shards.read.open import ReadOptions
from pilekit.shards.read.read_errors import BadRecord

logger = message_logger(__name__)

SEARCHED = 3
"""The number of shards whose beginnings are read again; a shard may be empty."""


def check_label(
    corpus: Corpus,
    labels: Collection[str],
    subsets: Collection[str] | None = None,
    *,
    per_subset: bool = False,
    stopped: bool = False,
    discard: Callable[[], None] = lambda: None,
) -> None:
    """Raise PilekitError, or log a warning, if a pass over the corpus met no label.

    labels       the subsets of all documents that the pass read
    subsets      the requested subsets; None: all
    per_subset   whether the result is figures for each subset
    stopped      whether the pass may have ended before a record that has a label; then the first records are judged
    discard      called before an error, to remove the output

    A pass with requested subsets, or with figures for each subset and a label path other than the Pile's, ends with an
    error. Any other pass gives a warning if it has another label path or figures for each subset, because a corpus may
    have no labels.
    """
    met, path = set(labels), corpus.manifest.label_path
    if (met != {UNLABELLED}) if subsets is None else (met & {*subsets} or met - {UNLABELLED}):
        return
    records, judged = first_records(corpus.shards), stopped or not met
    if judged and (not records or any(has_label(record, path) for record in records)):
        return
    named = path != Manifest(name="default").label_path
    first = "the first record has" if len(records) == 1 else f"the first {len(records):,} records have"
    which = f"{first} no" if judged else "no record has a"
    problem = f"{which} label at {path}{fields_of(records)}"
    if subsets is not None or (named and per_subset):
        discard()
        whose = "" if subsets is None else f"there are no documents of {shortened(', '.join(subsets), 400)}: "
        raise PilekitError(f"{whose}{problem}; name the field of the subset with --label, or label_path in a manifest")
    if named or (per_subset and {*chain.from_iterable(map(paths_in, records[:1]))} - {corpus.manifest.text_field}):
        logger.warning("%s; if another field names the subset, give it with --label", problem)


def first_records(shards: Sequence[Shard]) -> list[Mapping[str, Any]]:
    """The records at the beginning of the first shards, which are read again; none of standard input."""
    first: list[Mapping[str, Any]] = []
    for shard in [shard for shard in shards[:SEARCHED] if shard.path != STANDARD_INPUT]:
        with suppress(PilekitError), shard_blocks(shard.path, ReadOptions(ahead=False), columns=()) as blocks:
            for part in islice(numbered_parts(blocks), 1):
                first += [record for record in records_of(part) if type(record) is dict]
    return first


def has_label(record: Mapping[str, Any], path: str) -> bool:
    """Whether a record has a label at `path`."""
    try:
        return label_of(dict(record), tuple(path.split("."))) != UNLABELLED
    except BadRecord:
        return False


def fields_of(records: Sequence[Mapping[str, Any]]) -> str:
    """The fields of the first record, in brackets, for a message; "" if there is none."""
    return f" (the first has the fields {shortened(', '.join(paths_in(records[0])), 200)})" if records else ""


def paths_in(record: Mapping[str, Any], before: str = "", depth: int = 2) -> Iterator[str]:
    """The paths of the fields of a record, such as `meta.source`, down to fields of fields."""
    for name, value in record.items():
        if isinstance(value, Mapping) and value and depth > 1:
            yield from paths_in(value, f"{before}{name}.", depth - 1)
        else:
            yield f"{before}{name}"
