"""A setting is described once: its field gives type, range, default and sentence to calls, configs and commands."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

import pilekit
from pilekit.artifacts import settings
from pilekit.artifacts.settings import Count, naming_settings, of_setting, plain_types, settings_of, takes_settings
from pilekit.cli.options import setting_options
from pilekit.errors import PilekitError
from pilekit.evaluate.settings import BitsPerByteSettings
from pilekit.stream.settings import StreamSettings
from pilekit.train.config.sections import DataConfig
from tests.refusing import refused

SOURCES = " ".join(" ".join(path.read_text().split()) for path in Path(pilekit.__file__).parent.rglob("*.py"))
FUNCTIONS = {StreamSettings: pilekit.PileStream.__init__, BitsPerByteSettings: pilekit.bits_per_byte}


class _First(msgspec.Struct, frozen=True):
    path: str
    """Where it is."""


class _Settings(_First, frozen=True, kw_only=True):
    size: Annotated[int, msgspec.Meta(ge=2, le=9)] | None = None
    """How large it is, instead of `count`. More is not said here."""
    count: Count = 3
    """How many
    there are."""
    is_new: bool = False
    """Whether it is new."""


@takes_settings(_Settings)
def shown(settings: _Settings) -> tuple[Any, ...]:
    """Show it.

    settings  the fields

    It ends.
    """
    return msgspec.structs.astuple(settings)


def test_a_function_has_the_fields_in_its_signature_and_docstring() -> None:
    assert shown("here", size=4) == ("here", 4, 3, False)
    expected = (
        "(path: 'str', *, size: 'int | None' = None, count: 'int' = 3, is_new: 'bool' = False) -> 'tuple[Any, ...]'"
    )
    assert str(inspect.signature(shown)) == expected
    assert inspect.getdoc(shown) == (
        "Show it.\n\npath      Where it is.\nsize      How large it is, instead of `count`. More is not said here.\n"
        "count     How many there are.\nis_new    Whether it is new.\n\nIt ends."
    )


@given(st.none() | st.booleans() | st.integers() | st.floats() | st.text("abc", max_size=3))
def test_a_value_out_of_the_range_of_its_field_is_refused(value: Any) -> None:
    allowed = {
        "size": value is None or (type(value) is int and 2 <= value <= 9),
        "count": type(value) is int and 1 <= value <= 2**53,
        "is_new": type(value) is bool,
    }
    for name, fits in allowed.items():
        if fits:
            assert value in shown("here", **{name: value})
        else:
            refused(rf"^{name} = .*: must be ", shown, "here", **{name: value})


def test_a_caller_with_other_names_says_them() -> None:
    for names, begin in (({"size": "data.size"}, r"^data\.size: size = 1: must be "), ({}, "^size = 1: must be ")):
        with pytest.raises(PilekitError, match=begin), naming_settings(lambda name, names=names: names.get(name, "")):
            shown("here", size=1)
    with pytest.raises(PilekitError, match=r"^in: wrong$"), naming_settings(str), of_setting("out"), of_setting("in"):
        raise PilekitError("wrong")
    with pytest.raises(PilekitError, match=r"^wrong$"), naming_settings(str):
        raise PilekitError("wrong")


def test_an_option_has_type_range_default_and_help_of_its_field() -> None:
    given: dict[str, Any] = {}

    @click.command()
    @setting_options(_Settings, "path", "size", "count", "is_new", size={"metavar": "S"})
    def command(**options: Any) -> None:
        given.update(options)

    def run(*arguments: str) -> str:
        return CliRunner().invoke(command, arguments).output

    run("--path", "here", "--size", "9", "--is-new")
    assert given == {"path": "here", "size": 9, "count": 3, "is_new": True}
    assert "Invalid value for '--size': 10 is not in the range 2<=x<=9" in run("--path", "here", "--size", "10")
    assert "Missing option '--path'" in run()
    assert re.search(r"--size S +How large it is, instead of --count\.  \[2<=x<=9\]\n", run("--help"))


def test_without_source_code_there_are_no_sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_source(thing: object) -> str:
        raise OSError(f"no source of {thing}")

    monkeypatch.setattr(inspect, "getsource", no_source)
    settings._class_bodies.cache_clear()
    found = settings_of.__wrapped__(_Settings)
    settings._class_bodies.cache_clear()
    assert [(setting.name, setting.sentence) for setting in found] == [
        (name, "") for name in ("path", "size", "count", "is_new")
    ]


@pytest.mark.parametrize("kind", [StreamSettings, BitsPerByteSettings, DataConfig])
def test_each_setting_has_one_sentence_in_the_whole_package(kind: type[msgspec.Struct]) -> None:
    for setting in settings_of(kind):
        assert setting.sentence.endswith("."), setting.name
        assert SOURCES.count(setting.sentence) == 1 or setting.name in ("manifest", "on_error"), setting.name


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_each_setting_is_a_row_of_the_docstring_and_in_the_signature(kind: type[msgspec.Struct]) -> None:
    text, parameters = inspect.getdoc(FUNCTIONS[kind]) or "", inspect.signature(FUNCTIONS[kind]).parameters
    assert [name for name in parameters if name != "self"] == [setting.name for setting in settings_of(kind)]
    for setting in settings_of(kind):
        assert len(re.findall(rf"^{setting.name} +\S", text, re.MULTILINE)) == 1
        assert parameters[setting.name].default == setting.default


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_each_number_word_and_truth_value_is_checked(kind: type[msgspec.Struct]) -> None:
    function = pilekit.PileStream if kind is StreamSettings else pilekit.bits_per_byte
    assert len(plain_types(kind)) > 8
    for name in plain_types(kind):
        refused(rf"^{name} = -0\.5: must be ", function, "nowhere", "none", **{name: -0.5})
