"""An error of `checked` names field, value and range, for any bounds, and no message holds msgspec's own words."""

from __future__ import annotations

import json
import math
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.artifacts.checked import checked, reason_of_damage, typed_value
from pilekit.errors import PilekitError


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    share: Annotated[float, msgspec.Meta(gt=0, le=1)]
    path: Annotated[str, msgspec.Meta(pattern="^[a-z]+$", description="a lower-case word")] = "a"
    kind: Literal["a", "b"] = "a"
    pair: tuple[int, bool] | None = None
    weights: dict[str, Annotated[float, msgspec.Meta(ge=0)]] = {}

    def __post_init__(self) -> None:
        if self.kind == "b" and self.share == 1:
            raise ValueError("`kind` and `share` contradict each other")


class Outer(msgspec.Struct):
    inner: list[Inner]
    most: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"share": 2}, "inner[0].share = 2: must be a number over 0 and at most 1"),
        ({"share": "\x1b"}, r'inner[0].share = "\u001b": must be a number over 0 and at most 1'),
        ({"path": "A"}, 'inner[0].path = "A": must be a lower-case word'),
        ({"kind": "c"}, 'inner[0].kind = "c": must be "a" or "b"'),
        ({"pair": [1]}, "inner[0].pair = [1]: must be a list of 2: a whole number, true or false"),
        ({"pair": [1, 1]}, "inner[0].pair[1] = 1: must be true or false"),
        ({"weights": {"x": -1}}, 'inner[0].weights = {"x": -1}: must be a table, each value a number of at least 0'),
        ({"pth": "a"}, 'unknown field of inner[0], "pth"; did you mean path? There are share, path, kind, pair, '),
        ({"kind": "b"}, "inner[0]: `kind` and `share` contradict each other"),
    ],
)
def test_the_field_its_value_and_its_range_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PilekitError) as error:
        checked({"inner": [{"share": 1, **changes}]}, Outer)
    assert str(error.value).startswith(message)
    with pytest.raises(PilekitError) as error:
        checked({"share": 1, **changes}, Inner, "one")
    assert str(error.value).startswith(message.replace("inner[0]", "one"))


def test_what_is_missing_and_the_whole_are_named() -> None:
    for value, kind, name, message in (
        ({}, Outer, "", "inner is missing"),
        ({"inner": [{}]}, Outer, "", "inner[0].share is missing"),
        ([], Outer, "all", "all = []: must be a table"),
        ({"inner": [], "most": 0}, Outer, "", "most = 0: must be a whole number from 1 to 2^53"),
        (-1, Annotated[int, msgspec.Meta(ge=0, lt=9)], "n", "n = -1: must be a whole number of at least 0 and under 9"),
    ):
        with pytest.raises(PilekitError) as error:
            checked(value, kind, name)
        assert str(error.value) == message
    assert checked({"inner": []}, Outer) == Outer([])


BOUNDS = st.one_of(st.none(), st.integers(-1000, 1000))


@given(BOUNDS, BOUNDS, st.booleans(), st.booleans(), st.floats(-2000, 2000))
def test_any_range_is_the_one_that_is_said(
    least: int | None, most: int | None, at_least: bool, at_most: bool, value: float
) -> None:
    bounds = {"ge" if at_least else "gt": least, "le" if at_most else "lt": most}
    kind = Annotated[float, msgspec.Meta(**{name: bound for name, bound in bounds.items() if bound is not None})]
    low = least is None or (value >= least if at_least else value > least)
    high = most is None or (value <= most if at_most else value < most)
    if low and high:
        assert checked(value, kind, "x") == value
        return
    with pytest.raises(PilekitError) as error:
        checked(value, kind, "x")
    assert str(error.value).startswith(f"x = {json.dumps(value)}: must be a number ")
    said = str(error.value).partition("must be a number ")[2].replace(",", "")
    words = {"ge": ("from ", "of at least "), "gt": ("over ",), "le": ("to ", "at most "), "lt": ("under ",)}
    for name, bound in bounds.items():
        assert bound is None or any(f"{word}{bound}" in said for word in words[name]), said


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists), st.binary())
def test_no_message_holds_words_of_msgspec(value: Any, data: bytes) -> None:
    if not isinstance(value, float) or not math.isnan(value):
        with pytest.raises(PilekitError) as error:
            checked(value, Outer, "it")
        assert "Expected" not in str(error.value).replace(json.dumps(value, default=str), "")
    for encoded in (data, b'{"inner":' + data):
        try:
            msgspec.json.decode(encoded, type=Outer)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            reason = reason_of_damage(error)
            assert "`" not in reason
            assert "Expected" not in reason


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[1, {a = 'b'}]", [1, {"a": "b"}]),
        ("2.5", 2.5),
        ("true", True),
        ("ArXiv", "ArXiv"),
        ("1\nother = 2", "1\nother = 2"),
        ("[" * 100_000, "[" * 100_000),
        ("", ""),
    ],
)
def test_a_typed_value_is_toml_or_text(text: str, value: object) -> None:
    assert typed_value(text) == value
