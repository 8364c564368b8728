"""The mixture: `subsets` and `repeats` by exact names, and `weights`, shares of tokens, as `repeats` or a `Schedule`.

Weights that do not change are turned into repeats:

    repeats of a subset = its share * tokens of all named subsets / its own tokens

So an epoch has about as many tokens as the named subsets have, and their shares are the weights. A subset's tokens are
its bytes, which the indexes hold, times its tokens per byte, measured on 128 of its documents, at most a million
characters of each. They are drawn by hash, so every process finds the same factors. Factors have four digits. On the
mini-Pile's 22 subsets the shares of an epoch are right within 2 % of each. For token files, token counts are exact.

Weights by step become a `Schedule` (order/schedule.py). It counts the tokens themselves, so of a subset only the usual
length of its documents has to be known, roughly: of the same 128. If its first entry is for a later step than 0, the
order before it has `subsets` and `repeats`, or weights that do not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from pilekit.artifacts.settings import of_setting
from pilekit.corpus import Corpus, Manifest, resolve_subsets, subsets_or_all
from pilekit.corpus.shuffle import Int64, mix
from pilekit.dedup.cluster_weights import LineWeights
from pilekit.errors import PilekitError, shortened
from pilekit.shards.index.format import ShardIndex
from pilekit.shards.random_access.document_reader import OpenReaders
from pilekit.shards.random_access.selected_lines import LineBitmap
from pilekit.stream.order.schedule import MOST_STEPS, Schedule
from pilekit.stream.read.token_files import TokenCorpus, TokenIndex
from pilekit.stream.settings import RowSettings
from pilekit.tokenize import Tokenizer

_WEIGHTS = 7
"""Keeps these hashes apart from others."""

MOST = 1000
"""A larger factor is a mistake."""

SAMPLED = 128
SAMPLED_CHARACTERS = 1_000_000


def exact_mixture(
    settings: RowSettings, manifest: Manifest
) -> tuple[tuple[str, ...] | None, dict[str, float], dict[str, float] | None, Schedule | None]:
    """(subsets, repeats, shares of `weights` that do not change, weights by step) of these settings, by exact names.

    PilekitError for a name that the manifest does not have, and for settings that contradict each other.
    """
    shares: dict[str, float] | None = None
    schedule: Schedule | None = None
    with of_setting("weights"):
        constant: object = settings.weights
        if isinstance(settings.weights, list | tuple):
            has_both = len(settings.weights) > 1 and isinstance(settings.weights[0], Mapping)
            constant = settings.weights[0] if has_both else None
            schedule = exact_schedule(settings.weights[has_both:], settings.ramp, manifest)
        if constant is not None:
            shares = exact_weights(cast("Mapping[str, float]", constant), manifest)
        names_subsets = settings.subsets is not None or bool(settings.repeats)
        if names_subsets and (shares is not None or (schedule is not None and not schedule.begin)):
            raise PilekitError(
                "weights replaces repeats and subsets: it reads the subsets that it names; leave the others out"
            )
        if shares is not None and schedule is not None and not schedule.begin:
            raise PilekitError(
                "weights without a step are for the steps before the first entry, which is for step 0; leave them out, "
                "or give it a later step"
            )
    with of_setting("ramp"):
        if settings.ramp and schedule is None:
            raise PilekitError(
                f"ramp = {settings.ramp}: is the number of steps in which weights change, and they do not; give "
                "weights by step, or leave it out"
            )
    with of_setting("copies"):
        if settings.copies and settings.dedup is None:
            raise PilekitError(
                f"copies = {settings.copies:g} weighs the documents that a dedup kept by the number of their copies; "
                "give dedup too, or leave copies out"
            )
    with of_setting("subsets"):
        # A schedule selects by itself, because it may gain subsets.
        names = settings.subsets if shares is None else list(shares)
        subsets = subsets_or_all(names, manifest)
    with of_setting("repeats"):
        return subsets, exact_repeats(settings.repeats, subsets, manifest), shares, schedule


def exact_repeats(
    repeats: Mapping[str, float] | None, subsets: Sequence[str] | None, manifest: Manifest
) -> dict[str, float]:
    """`repeats` by exact subset names, sorted; factors of 1 are left out, because subsets not named have 1.

    subsets   exact names of the selected subsets; None: all

    PilekitError for a subset that is unknown, named twice or not selected, and for a factor that is not from 0 to 1000.
    """
    if repeats is None:
        return {}
    if not isinstance(repeats, Mapping):
        raise PilekitError(
            f'repeats is a dict from subset to factor, such as {{"ArXiv": 2.0}}, not {shortened(repr(repeats), 80)}'
        )
    rule = f"no factor; give a number from 0, which leaves it out, to {MOST:,}; 1 is every document once"
    factors: dict[str, float] = {}
    for name, factor in numbers_of_subsets("repeats", repeats, manifest, lambda factor: 0 <= factor <= MOST, rule):
        if subsets is not None and name not in subsets:
            raise PilekitError(
                f"repeats names {shortened(name, 80)}, which subsets leaves out; select it too, or drop its factor"
            )
        factors[name] = factor
    if subsets is not None and all(factors.get(name) == 0 for name in subsets):
        raise PilekitError("repeats is 0 for every selected subset, so nothing is left; give one of them more than 0")
    return {name: factor for name, factor in sorted(factors.items()) if factor != 1}


def numbers_of_subsets(
    argument: str, numbers: Mapping[str, float], manifest: Manifest, is_right: Callable[[float], bool], rule: str
) -> Iterator[tuple[str, float]]:
    """(exact name, number) of each entry; PilekitError for a wrong number, by the `rule`, or a subset named twice."""
    met: set[str] = set()
    for typed, number in numbers.items():
        (name,) = resolve_subsets(typed, manifest=manifest)
        if isinstance(number, bool) or not isinstance(number, int | float) or not is_right(number):
            raise PilekitError(f"{argument} of {shortened(name, 80)}: {shortened(repr(number), 80)} is {rule}")
        if name in met:
            raise PilekitError(f"{argument} names {shortened(name, 80)} twice, by different spellings; give it once")
        met.add(name)
        yield name, float(number)


def exact_weights(weights: Mapping[str, float], manifest: Manifest) -> dict[str, float]:
    """The shares by exact subset names, sorted, with sum 1; PilekitError if it is no mixture."""
    if not isinstance(weights, Mapping) or not weights:
        raise PilekitError(
            f'weights is a dict from subset to share, such as {{"ArXiv": 0.3, "GitHub": 0.7}}, not '
            f"{shortened(repr(weights), 80)}"
        )
    rule = "no share; give a number above 0, and leave out subsets that have no part"
    shares = dict(numbers_of_subsets("weights", weights, manifest, lambda weight: 0 < weight < math.inf, rule))
    total = sum(shares.values())
    return {name: weight / total for name, weight in sorted(shares.items())}


def exact_schedule(entries: Sequence[object], ramp: int, manifest: Manifest) -> Schedule:
    """The schedule of weights by step, as the setting `weights` has it; PilekitError if it is none."""
    usual = 'such as [(0, {"ArXiv": 1}), (1000, {"ArXiv": 1, "GitHub": 2})]'
    steps: list[int] = []
    shares: list[dict[str, float]] = []
    for entry in entries:
        match entry:
            case [int(step), Mapping() as weights] if not isinstance(step, bool) and 0 <= step <= MOST_STEPS:
                pass
            case _:
                raise PilekitError(f"weights by step are pairs of a step and its weights, {usual}")
        if steps and step <= steps[-1]:
            raise PilekitError(f"weights: step {step:,} follows step {steps[-1]:,}; give increasing steps, each once")
        try:
            shares.append(exact_weights(weights, manifest))
        except PilekitError as error:
            raise PilekitError(f"step {step:,}: {error}") from error
        steps.append(step)
    if not steps:
        raise PilekitError(f"weights by step have no entry; give pairs of a step and its weights, {usual}")
    return Schedule(tuple(steps), tuple(shares), ramp)


def usual_lengths(
    names: Sequence[str],
    corpus: Corpus,
    indexes: Sequence[ShardIndex],
    lines: Sequence[LineBitmap],
    tokenizer: Tokenizer,
    *,
    append_eod: bool,
    seq_len: int,
) -> dict[str, tuple[float, float]]:
    """Of each subset: the mean length of a document, and of the part of a row in which a token lies, in tokens.

    Both are those of the 128 documents that hashes draw. So token files have the lengths of their shards.
    """
    drawn = _drawn_documents(names, indexes, lines)[2]
    lengths = {}
    for name in names:
        tokens = _tokens_of(corpus, indexes, drawn[name], tokenizer).astype(np.float64) + append_eod
        total = float(tokens.sum())
        whole_rows, rest = np.divmod(tokens, seq_len)
        squares = float((whole_rows * seq_len**2 + np.square(rest)).sum())
        lengths[name] = (total / max(1, len(tokens)), squares / max(1.0, total))
    return lengths


def _tokens_of(
    corpus: Corpus, indexes: Sequence[ShardIndex], drawn: Sequence[tuple[int, int, int]], tokenizer: Tokenizer
) -> Int64:
    """Tokens of each of these documents: (hash, shard, number) each."""
    readers, counts = OpenReaders(corpus, indexes), [np.zeros(0, np.int64)]
    for shard in sorted({shard for _, shard, _ in drawn}):
        numbers, index = np.array(sorted(number for _, owner, number in drawn if owner == shard)), indexes[shard]
        if isinstance(index, TokenIndex):
            counts.append(index.stored(numbers).lengths)
        else:
            counts.append(np.diff(tokenizer.encode_batch(readers.reader(shard).batch(numbers).texts)[1]))
    readers.close()
    return np.concatenate(counts)


def repeats_of_weights(
    weights: Mapping[str, float],
    corpus: Corpus,
    indexes: Sequence[ShardIndex],
    lines: Sequence[LineBitmap],
    tokenizer: Tokenizer,
    *,
    append_eod: bool,
    uses: LineWeights | None = None,
) -> dict[str, float]:
    """The factor of each subset of `weights` (exact names, sum 1).

    indexes   of the corpus's shards
    lines     the lines of each shard that may be read, without documents that a dedup removed
    uses      how often each line counts; None: once

    PilekitError if a subset has no text, or would need a factor above `MOST`.
    """
    documents, text_bytes, lowest = _drawn_documents(list(weights), indexes, lines, uses)
    per_byte = {  # Token files have token counts in place of bytes.
        name: 1 if isinstance(corpus, TokenCorpus) else _tokens_per_byte(corpus, indexes, lowest[name], tokenizer)
        for name in weights
    }
    if missing := [name for name in weights if not text_bytes[name] * per_byte[name]]:
        raise PilekitError(f"weights names {shortened(missing[0], 80)}, which has no text; leave it out")
    tokens = {name: documents[name] * append_eod + text_bytes[name] * per_byte[name] for name in weights}
    total = sum(tokens.values())
    factors = {name: float(f"{weight * total / tokens[name]:.4g}") for name, weight in weights.items()}
    highest = max(factors, key=lambda name: factors[name])
    if factors[highest] > MOST:
        raise PilekitError(
            f"weights: {shortened(highest, 80)} reaches its share with {factors[highest]:,.0f} uses of its documents "
            f"per epoch, and {MOST:,} are the most; lower its weight"
        )
    return factors


def _drawn_documents(
    names: Sequence[str], indexes: Sequence[ShardIndex], lines: Sequence[LineBitmap], uses: LineWeights | None = None
) -> tuple[dict[str, float], dict[str, float], dict[str, list[tuple[int, int, int]]]]:
    """Of each subset: its documents, their bytes, and `SAMPLED` of those with text, as (hash, shard, number).

    lines   the lines of each shard that may be read
    uses    how often each document counts; None: once
    """
    documents: dict[str, float] = dict.fromkeys(names, 0.0)
    text_bytes = documents.copy()
    lowest: dict[str, list[tuple[int, int, int]]] = {name: [] for name in names}
    for shard, (index, readable) in enumerate(zip(indexes, lines, strict=True)):
        chosen = readable.numbers(0, len(readable))
        for rows in index.rows("number", "subset", "text_bytes"):
            begin, end = np.searchsorted(chosen, [rows.numbers[0], rows.numbers[-1] + 1])  # both ascend
            is_chosen = np.isin(rows.numbers, chosen[begin:end], assume_unique=True)
            hashes = mix(_WEIGHTS, shard, rows.numbers)
            for code, name in enumerate(rows.labels):
                if name not in lowest:
                    continue
                of_subset = np.flatnonzero(is_chosen & (rows.codes == code))
                counts = np.ones(len(of_subset)) if uses is None else uses.of(shard, rows.numbers[of_subset])
                documents[name] += float(counts.sum())
                text_bytes[name] += float(counts @ rows.text_bytes[of_subset])
                with_text = of_subset[rows.text_bytes[of_subset] > 0]
                first = with_text[np.argsort(hashes[with_text], kind="stable")[:SAMPLED]]
                drawn = [(int(hashes[row]), shard, int(rows.numbers[row])) for row in first]
                lowest[name] = sorted([*lowest[name], *drawn])[:SAMPLED]
    return documents, text_bytes, lowest


def _tokens_per_byte(
    corpus: Corpus, indexes: Sequence[ShardIndex], drawn: Sequence[tuple[int, int, int]], tokenizer: Tokenizer
) -> float:
    """Tokens per byte of these documents: (hash, shard, number) each."""
    readers = OpenReaders(corpus, indexes)
    tokens = size = 0
    for shard in sorted({shard for _, shard, _ in drawn}):
        numbers = np.array(sorted(number for _, owner, number in drawn if owner == shard), dtype=np.int64)
        texts = [text[:SAMPLED_CHARACTERS] for text in readers.reader(shard).batch(numbers).texts]
        tokens += len(tokenizer.encode_batch(texts)[0])
        size += sum(len(text.encode()) for text in texts)
    readers.close()
    return tokens / max(1, size)
