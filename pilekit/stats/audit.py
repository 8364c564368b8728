"""`audit_corpus`: what others have published about a corpus, beside what this one has.

    shards -> counts of each, hashes in files -> counts of each split, hashes sorted -> a verdict for each figure

One pass reads every shard. Memory holds what sorting may use, and the different lengths of texts. Counts do not depend
on the order of the shards or the number of processes.

Some shards of a release cannot be held to most of its figures. Of its train shards a manifest may know how many
documents each has. A longest text or a number of occurrences of all is a bound for a part, and shares and medians must
be those of a random part, with five standard deviations.
"""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np

from pilekit.artifacts.sort.memory_limit import sorting_memory
from pilekit.corpus import Corpus, Described, Manifest, Source
from pilekit.corpus.manifest_parts import PublishedFigure
from pilekit.corpus.shard import Shard
from pilekit.errors import PilekitError
from pilekit.shards.corpus_job import CorpusJob
from pilekit.shards.index.document_rows import load_scan
from pilekit.shards.read.read_errors import SkippedLines
from pilekit.shards.work import Work, takes
from pilekit.stats.audit_result import AuditedFigure, CorpusAudit, Verdict, name_of
from pilekit.stats.audited_shard import AuditCounts, AuditOptions, audit_shard
from pilekit.stats.text_copies import CopyCounts, TextCopies

if TYPE_CHECKING:
    from pilekit.tokenize import Tokenizer

_HASHES = 1 << 17
"""Hashes that are read from a file at a time."""

_DEVIATIONS = 5
"""Standard deviations by which a random part may differ."""

_NEAR = 0.02
"""By this share of a published figure a count may differ from that of a variant that it is taken for."""

SPLITS: tuple[str, ...] = ("train", "val", "test")

_ONLY_WHOLE = ("bytes", "distinct", "twins", "clusters", "tokens")


@takes(Work)
def audit_corpus(
    corpus: Corpus | Source,
    *,
    tokenizer: Tokenizer | str | Path | Any | None = None,
    manifest: Described = None,
    **work: Unpack[Work],
) -> CorpusAudit:
    """Compare a corpus with the published figures in its manifest.

    corpus      a `Corpus`, or one or several paths, globs or URLs
    tokenizer   for published numbers of tokens; a `Tokenizer`, or an argument of `load_tokenizer`
    manifest    describes the corpus at a path, as for `Corpus`
    work        on_error, jobs, advance, cluster: see `Work`

    PilekitError if the manifest has no published figures. Equal texts are found by 64-bit hashes.
    """
    corpus = Corpus.of(corpus, manifest)
    figures = corpus.manifest.figures.figures
    if not figures:
        raise PilekitError(
            f"the manifest {corpus.manifest.name} has no published figures; give one with [[published.figures]]"
        )
    if tokenizer is not None:
        from pilekit.tokenize import load_tokenizer

        tokenizer = load_tokenizer(tokenizer)
        if all(_is_other(figure, tokenizer) for figure in figures if figure.tokenizer is not None):
            tokenizer = None  # Nothing published is in its tokens.
    strings = sorted({figure.text for figure in figures if figure.text is not None})
    job = CorpusJob(corpus, **work)
    job = replace(job, jobs=job.processes(corpus.shards))
    stored = sum(shard.size or 0 for shard in corpus.shards) // (job.jobs or 1)
    options = AuditOptions(corpus.manifest, [text.encode() for text in strings], tokenizer, job.on_error, stored)
    if tokenizer is None:
        load_scan(job, corpus.shards)
    count = functools.partial(audit_shard, options=options)
    most_frequent = max((figure.rank or 0 for figure in figures), default=0)
    splits: dict[str, _Split] = {}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pilekit-audit-")))
        for name in {_split_of(shard) for shard in corpus.shards}:
            copies = TextCopies(folder, sorting_memory() // 4, most_frequent)
            splits[name] = _Split([], AuditCounts(), stack.enter_context(copies))
        results = stack.enter_context(closing(job.each_file(count, corpus.shards, "audit")))
        for shard, (path, counts) in zip(corpus.shards, results, strict=True):
            split = splits[_split_of(shard)]
            split.shards.append(shard)
            split.counts.merge(counts)
            with path.open("rb") as file:
                while len(hashes := np.fromfile(file, np.uint64, _HASHES)):
                    split.copies.add(hashes)
        counted = {name: _Counted(split.shards, split.counts, split.copies.counts()) for name, split in splits.items()}
    skipped = SkippedLines()
    for split in splits.values():
        skipped.merge(split.counts.skipped)
    compare = functools.partial(_compared, counted=counted, manifest=corpus.manifest, strings=strings, used=tokenizer)
    shards = {name: len(counted[name].shards) for name in SPLITS if name in counted}
    return CorpusAudit(corpus.manifest.name, shards, tuple(map(compare, figures)), skipped)


@dataclass(frozen=True)
class _Split:
    """A split while its shards are counted."""

    shards: list[Shard]
    counts: AuditCounts
    copies: TextCopies


@dataclass(frozen=True)
class _Counted:
    """A split that was counted."""

    shards: Sequence[Shard]
    counts: AuditCounts
    copies: CopyCounts

    def value(self, figure: PublishedFigure, strings: Sequence[str]) -> float:
        """The count that is published as this figure."""
        counts, copies, lengths = self.counts, self.copies, self.counts.lengths
        match figure.figure:
            case "documents" | "bytes" | "tokens":
                return int(getattr(counts, figure.figure))
            case "distinct" | "twins" | "clusters":
                return int(getattr(copies, figure.figure))
            case "tokens_per_byte":
                return counts.tokens / max(1, counts.bytes)
            case "longest":
                return int(lengths.values.max(initial=0))
            case "shortest":
                return int(lengths.values[0]) if len(lengths.values) else 0
            case "median":
                return lengths.median
            case "length_share":
                return lengths.documents_of(figure.characters or 0) / max(1, counts.documents)
            case "copies":
                rank = figure.rank or 1
                return int(copies.frequent[rank - 1]) if len(copies.frequent) >= rank else 0
            case "occurrences":
                return counts.occurrences[strings.index(figure.text or "")]
        raise ValueError(figure.figure)


def _compared(
    figure: PublishedFigure,
    *,
    counted: dict[str, _Counted],
    manifest: Manifest,
    strings: Sequence[str],
    used: Tokenizer | None,
) -> AuditedFigure:
    """The figure beside its count."""
    published, split = figure.value, counted.get(figure.split)

    def row(verdict: Verdict, value: float | None, note: str = "") -> AuditedFigure:
        stated = int(published) if published == int(published) else published
        return AuditedFigure(name_of(figure), figure.split, stated, value, verdict, figure.source, note)

    if figure.figure == "stated":
        return row("not counted", None, "is only stated")
    if split is None:
        return row("not counted", None, f"no {figure.split} shard")
    whole = manifest.figures.train_shards if figure.split == "train" else 1
    is_part = whole is not None and len(split.shards) < whole
    if figure.tokenizer is not None and (used is None or _is_other(figure, used)):
        ids = "" if figure.vocabulary is None else f" with {figure.vocabulary:,} ids"
        return row("not counted", None, f"needs --tokenizer{ids}")
    if is_part:
        known = _documents_of_files(split.shards, manifest) if figure.figure == "documents" else None
        if known is not None:
            published, is_part = known, False
        elif figure.figure in (*_ONLY_WHOLE, "documents"):
            return row("not counted", None, f"needs all {whole} shards")
    value = split.value(figure, strings)
    allowed = figure.tolerance * published
    if is_part:
        fits = _part_fits(figure, value, split, allowed)
        return row("fits", value) if fits else row("differs", value, _difference(figure, published, value))
    if value == published:
        return row("equal", value)
    if abs(value - published) <= allowed:
        return row("close", value)
    return row("differs", value, _difference(figure, published, value))


def _part_fits(figure: PublishedFigure, value: float, split: _Counted, allowed: float) -> bool:
    """Whether a part of a corpus agrees with a figure of the whole."""
    documents, published = max(1, split.counts.documents), figure.value
    if figure.figure == "shortest":
        return value >= published - allowed
    if figure.figure == "median":
        below, not_above = split.counts.lengths.share_below(published)
        random = _DEVIATIONS * 0.5 / math.sqrt(documents)
        return abs(value - published) <= allowed or below - random <= 0.5 <= not_above + random
    if figure.figure == "length_share":
        random = _DEVIATIONS * math.sqrt(published * (1 - min(1.0, published)) / documents)
        return abs(value - published) <= allowed + random
    if figure.figure == "tokens_per_byte":
        return abs(value - published) <= allowed
    return value <= published + allowed


def _difference(figure: PublishedFigure, published: float, value: float) -> str:
    """How far a count is from what was published, and what that would mean."""
    if published and value > 10 * published:
        change = f"{value / published:,.0f} times what was published"
    else:
        size = f"{100 * abs(value - published) / published:.3g} % " if published else ""
        change = f"{size}{'less' if value < published else 'more'} than published"
    scale = published / figure.value if figure.value else 1.0  # Of some shards, the share of the whole is published.
    distances = {abs(value - scale * there): variant for variant, there in figure.variants.items()}
    if distances and min(distances) <= _NEAR * published:
        return f"{change}, as in {distances[min(distances)]}"
    return f"{change}: {figure.difference}" if figure.difference else change


def _documents_of_files(shards: Sequence[Shard], manifest: Manifest) -> int | None:
    """The documents that the release has in these train shards; None if it does not say so of each."""
    release = manifest.release
    files = [file for file in release.files if file.first_document is not None]
    if release.train_documents is None or not files:
        return None
    firsts = [file.first_document or 0 for file in files]
    ends = dict(zip(firsts, [*firsts[1:], release.train_documents], strict=True))
    first_of = {_stem(file.name): file.first_document or 0 for file in files}
    stems = [_stem(shard.name) for shard in shards]
    if len({*stems}) < len(stems) or not first_of.keys() >= {*stems}:
        return None
    return sum(ends[first_of[stem]] - first_of[stem] for stem in stems)


def _stem(name: str) -> str:
    return PurePosixPath(name).name.partition(".")[0]


def _split_of(shard: Shard) -> str:
    return shard.split or "train"


def _is_other(figure: PublishedFigure, tokenizer: Tokenizer) -> bool:
    """Whether the tokenizer is not the one that a figure was counted with."""
    return figure.vocabulary is not None and figure.vocabulary != tokenizer.vocab_size
