"""Lines that are hard to edit, and the slow, obviously right way to put another text into a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from json.decoder import scanstring
from random import Random

from hypothesis import strategies as st

NUMBERS = [
    "0",
    "-0.0",
    "1.0",
    "1E+2",
    "1e-400",
    "0.10",
    "18446744073709551616",
    "-9223372036854775809",
    "296" + "0" * 36,
]
SPACES = ["", "", "", " ", "\t", "\r", " \t "]
SHORT = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}

hard_texts = st.lists(
    st.one_of(
        st.sampled_from(
            ['"', "\\", "/", "{", "}", "[", "]", ",", ":", "\n", "\t", "\0", "\u2028", "\ufeff", "é", "🎲"]
        ),
        st.sampled_from(['"text": "', '\\"', '"}', "text", "\\u0022"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    ),
    max_size=8,
).map("".join)


def slow_edit(line: bytes, text: str, field: str = "text") -> bytes:
    """The line with another text, by Python's scanner of JSON: of repeated fields, the last one is the text."""
    spelled = line.decode()
    scanner = json.JSONDecoder(parse_int=str, parse_float=str)
    begin = end = -1
    at = _after_spaces(spelled, 0) + 1
    while spelled[at := _after_spaces(spelled, at)] != "}":
        key, at = scanstring(spelled, at + 1)
        value = _after_spaces(spelled, _after_spaces(spelled, at) + 1)  # after the colon
        _, at = scanner.raw_decode(spelled, value)
        if key == field:
            begin, end = value, at
        at = _after_spaces(spelled, at)
        at += spelled[at] == ","
    assert spelled[begin] == '"'
    return (spelled[:begin] + json.dumps(text, ensure_ascii=False) + spelled[end:]).encode()


def _after_spaces(spelled: str, at: int) -> int:
    while spelled[at] in " \t\r":
        at += 1
    return at


@st.composite
def hard_lines(draw: st.DrawFn, field: str = "text", label_path: tuple[str, ...] = ("meta", "pile_set_name")) -> bytes:
    """A record in any spelling: repeated and nested keys of the same name, escapes, spaces, numbers of any size."""
    random = draw(st.randoms(use_true_random=False))
    texts = draw(st.lists(hard_texts, min_size=3, max_size=6))

    def space() -> str:
        return random.choice(SPACES)

    def string(value: str) -> str:
        return '"' + "".join(_character(character, random) for character in value) + '"'

    def record(members: list[tuple[str, str]]) -> str:
        pairs = (f"{space()}{string(key)}{space()}:{space()}{value}{space()}" for key, value in members)
        return "{" + (",".join(pairs) or space()) + "}"

    def some_key() -> str:
        return random.choice([field, field, "text", "te", "\\" + field, random.choice(texts)])

    def any_value(depth: int = 0) -> str:
        kinds: list[Callable[[], str]] = [
            lambda: random.choice([*NUMBERS, "true", "false", "null"]),
            lambda: string(random.choice(texts)),
            lambda: "[" + ",".join(space() + any_value(depth + 1) + space() for _ in range(random.randrange(4))) + "]",
            lambda: record([(some_key(), any_value(depth + 1)) for _ in range(random.randrange(4))]),
        ]
        return random.choice(kinds[: 2 if depth > 2 else 4])()

    members = [(some_key(), any_value()) for _ in range(random.randrange(6))]
    members = [(key, value) for key, value in members if key != label_path[0] or key == field]
    members.insert(random.randrange(len(members) + 1), (field, string(random.choice(texts))))
    last = max(place for place, (key, _) in enumerate(members) if key == field)
    members[last] = (field, string(random.choice(texts)))
    if label_path[0] != field and random.random() < 0.8:
        label = string("ArXiv")
        for key in reversed(label_path[1:]):
            label = record([(field, any_value()), (key, label)])
        members.insert(random.randrange(len(members) + 1), (label_path[0], label))
    return (space() + record(members) + space()).encode()


def _character(character: str, random: Random) -> str:
    """A character as a string of JSON may spell it."""
    spellings = [SHORT[character]] if character in SHORT else []
    if character not in '"\\' and ord(character) >= 32:
        spellings += [character] * 8
    if not spellings or random.random() < 0.1:
        units = character.encode("utf-16-be").hex()
        spellings = ["".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))]
    return random.choice(spellings)
