"""Errors and log messages reach a terminal without control characters, whatever document text or name they quote."""

from __future__ import annotations

import logging
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilekit.errors import PilekitError, message_logger, shortened, visible
from pilekit.shards.read.json_records import BadLineError
from pilekit.train.checkpoint.saving import Unwritten

HOSTILE = "a\x1b[31m\nb\u202e\udc80\x9b"
SHOWN = "a\\x1b[31m\\x0ab\\u202e\\udc80\\x9b"


@pytest.mark.parametrize("kind", [PilekitError, BadLineError, Unwritten])
def test_an_error_spells_out_what_a_terminal_would_obey(kind: type[PilekitError]) -> None:
    error = kind(f"{HOSTILE}: is bad")
    assert str(error).startswith(f"{SHOWN}: is bad")
    assert str(pickle.loads(pickle.dumps(error))).startswith(f"{SHOWN}: is bad")
    assert str(PilekitError(OSError(HOSTILE))) == SHOWN


def test_a_log_message_spells_it_out_for_any_handler(caplog: pytest.LogCaptureFixture) -> None:
    logger = message_logger("pilekit.hostile")
    with caplog.at_level(logging.INFO):
        logger.info("%s has %d", HOSTILE, 3)
        logger.warning(f"{HOSTILE} has 100 %")
    assert caplog.messages == [f"{SHOWN} has 3", f"{SHOWN} has 100 %"]


@given(st.text(), st.integers(0, 20))
def test_spelling_out_twice_changes_nothing_and_the_limit_counts_the_original(text: str, limit: int) -> None:
    shown = visible(text)
    assert visible(shown) == shown
    assert shown.isprintable() or not any(ord(one) < 0x20 or 0x7F <= ord(one) < 0xA0 for one in shown)
    assert visible(text, limit) == visible(shortened(text, limit))
    assert shortened(text, limit) == (text if len(text) <= limit else text[:limit] + "…")
