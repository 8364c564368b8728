"""The sets of rules by the names that people type, such as `gopher` or `c4-fineweb`, and changes of single limits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from pilekit.errors import PilekitError, shortened
from pilekit.pipeline.pipeline import names_in
from pilekit.pipeline.rules.c4 import C4, FineWeb
from pilekit.pipeline.rules.gopher import GopherQuality, GopherRepetition
from pilekit.pipeline.rules.rule_set import RuleSet

SETS: dict[str, RuleSet] = {
    "gopher-quality": GopherQuality(),
    "gopher-repetition": GopherRepetition(),
    "c4": C4(),
    "c4-fineweb": C4(end_mark=False),
    "fineweb": FineWeb(),
    "fineweb-datatrove": FineWeb(dup_line_chars=0.01, newlines=0.3),
}
GROUPS = {"gopher": ("gopher-quality", "gopher-repetition")}


def rule_sets(names: str | Iterable[str], bad_words: Path | None = None) -> dict[str, RuleSet]:
    """The sets of these names, each once, in their order; PilekitError for an unknown name.

    bad_words   a file of words, one a line, for the sets of C4
    """
    sets: dict[str, RuleSet] = {}
    for name in names_in(names):
        for set_name in GROUPS.get(name, (name,)):
            if set_name not in SETS:
                choices = ", ".join([*GROUPS, *SETS])
                raise PilekitError(f"there is no set of rules {shortened(repr(name), 80)}; the sets are {choices}")
            sets[set_name] = SETS[set_name]
    if bad_words is None:
        return sets
    of_c4 = {name: rules for name, rules in sets.items() if isinstance(rules, C4)}
    if not of_c4:
        raise PilekitError("bad words are a rule of C4: choose c4 or c4-fineweb among the rules")
    try:
        words = tuple(filter(None, map(str.strip, bad_words.read_text("utf-8-sig").splitlines())))
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "it is not UTF-8")
        raise PilekitError(f"{bad_words}: cannot be read: {why}") from error
    if not words:
        raise PilekitError(f"{bad_words}: holds no words; write one a line")
    return sets | {name: replace(rules, bad_words=words) for name, rules in of_c4.items()}


def with_limits(sets: Mapping[str, RuleSet], changes: Iterable[str]) -> dict[str, RuleSet]:
    """The sets with other limits, each written like `c4.sentences=5` or `gopher-quality.words=20,100000`."""
    changed = dict(sets)
    for change in changes:
        rule, _, typed = change.partition("=")
        name, _, limit = rule.partition(".")
        limits = {
            f"{set_name}.{field.name}": getattr(rules, field.name)
            for set_name, rules in changed.items()
            for field in fields(rules)
            if field.name not in ("end_mark", "bad_words")
        }
        if rule not in limits:
            raise PilekitError(f"{shortened(change, 80)}: there is no such limit; {named_near(rule, limits)}")
        pair = isinstance(limits[rule], tuple)
        try:
            numbers = tuple(map(float, typed.split(",")))
        except ValueError:
            numbers = ()
        if len(numbers) != 1 + pair or any(map(math.isnan, numbers)) or list(numbers) != sorted(numbers):
            like = "two numbers, LEAST,MOST" if pair else "a number"
            raise PilekitError(
                f"{shortened(change, 80)}: the limit {rule} is {like}, such as {rule}={'20,500' if pair else 3}"
            )
        changed[name] = replace(changed[name], **{limit: numbers if pair else numbers[0]})
    return changed


def named_near(rule: str, rules: Iterable[str]) -> str:
    """For an error about an unknown `rule`: the rules of its set, or the chosen sets."""
    same = [name for name in rules if name.startswith(rule.partition(".")[0] + ".")]
    sets = ", ".join(dict.fromkeys(name.partition(".")[0] for name in rules))
    return f"there are {', '.join(same)}" if same else f"write SET.rule; the chosen sets are {sets or 'none'}"
