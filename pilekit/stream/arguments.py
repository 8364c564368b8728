"""What PileStream is given, checked: each wrong value is one line that says what is right."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from pilekit.corpus import Corpus, resolve_subsets
from pilekit.errors import PilekitError, visible
from pilekit.progress import byte_progress
from pilekit.shards.read.reader import OnError
from pilekit.stream.batch.mlm import Masking
from pilekit.stream.read.plan import Plan, choose_plan
from pilekit.tokenize import Tokenizer, load_tokenizer

logger = logging.getLogger(__name__)

MOST_TOKENS_IN_ROW = 1 << 24
"""What a row can be asked to hold: more is a slip, and no memory could hold a batch of it."""


def check_one_of(name: str, value: object, valid: Sequence[str]) -> None:
    """PilekitError if the argument `name` is none of `valid`."""
    if value not in valid:
        raise PilekitError(f"{name} is one of {', '.join(valid)}, not {visible(repr(value), 80)}")


def check_number(name: str, value: object, least: int | None = 1, most: int | None = None) -> None:
    """PilekitError if the argument `name` is no whole number from `least` to `most`; None: without that bound."""
    if type(value) is not int or (least is not None and value < least) or (most is not None and value > most):
        bound = "" if least is None else f" from {least} on" if most is None else f" from {least} to {most:,}"
        raise PilekitError(f"{name} is a whole number{bound}, not {visible(repr(value), 80)}")


def check_flag(name: str, value: object) -> None:
    """PilekitError if the argument `name` is neither True nor False: "no" would be taken for yes."""
    if type(value) is not bool:
        raise PilekitError(f"{name} is True or False, not {visible(repr(value), 80)}")


def check_path(name: str, value: object) -> None:
    """PilekitError if the argument `name` is neither None nor a path."""
    if value is not None and (not isinstance(value, str | Path) or not str(value)):
        raise PilekitError(f"{name} is the path of a folder, or None, not {visible(repr(value), 80)}")


def tokenizer_of(tokenizer: object) -> Tokenizer | None:
    """The tokenizer that `tokenizer` names or is; None: documents as they are."""
    if tokenizer is None or isinstance(tokenizer, Tokenizer):
        return tokenizer
    if not isinstance(tokenizer, str | Path):
        raise PilekitError(
            f"tokenizer is the path of a tokenizer.json or of its folder, or what load_tokenizer gives, not "
            f"{visible(repr(tokenizer), 80)}; None is for documents as they are"
        )
    return load_tokenizer(tokenizer)


def corpus_of(data: str | Path | Sequence[str | Path] | Corpus) -> Corpus:
    """The corpus without held-out shards; a `Corpus` as it is, and if it has some, a warning says so."""
    if not isinstance(data, Corpus):
        return Corpus(data).without_held_out()
    if data.held_out:
        names = ", ".join(visible(shard.name) for shard in data.held_out)
        logger.warning("streams held-out shards too: %s; give corpus.without_held_out() to leave them out", names)
    return data


def plan_of(corpus: Corpus, on_error: OnError, tell: bool) -> Plan:
    """The corpus's plan; `tell`: with a progress line while indexes are made."""
    if not tell:
        return choose_plan(corpus, on_error=on_error)
    with byte_progress("indexing", corpus.size) as advance:
        return choose_plan(corpus, on_error=on_error, advance=advance)


def subsets_of(subsets: Sequence[str] | None, corpus: Corpus) -> tuple[str, ...] | None:
    """The exact names; None: all."""
    if subsets is None:
        return None
    names = resolve_subsets(subsets, manifest=corpus.manifest)
    if not names:
        raise PilekitError("subsets is empty, so no document is selected; name some, or give None for all")
    return names


def eos_id_of(tokenizer: Tokenizer) -> int:
    """The token that follows every document."""
    if tokenizer.eos_id is None:
        raise PilekitError(
            f"the tokenizer {visible(str(tokenizer.path))} has no end-of-document token, which must follow every "
            'document; name it as "eos_token" in a tokenizer_config.json beside it'
        )
    return tokenizer.eos_id


def masking_of(tokenizer: Tokenizer) -> Masking:
    """What masked-language modelling needs of the tokenizer."""
    if tokenizer.mask_id is None:
        raise PilekitError(
            f'the tokenizer {visible(str(tokenizer.path))} has no mask token, which objective="mlm" needs; name it as '
            '"mask_token" in a tokenizer_config.json beside it, or use objective="clm"'
        )
    return Masking(tokenizer.mask_id, tokenizer.vocab_size, tokenizer.special_ids)
