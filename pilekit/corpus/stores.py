"""From a URL to the store behind it, with time-outs; and what is done again when a store fails.

Connections drop, servers restart: what may pass is tried again after a moment, a few times, and every wait has an end.
What will not pass (no such file, no permission, a server that cannot give ranges) fails at once.

fsspec's HTTP store limits a request to five minutes in all, which stops a good download and waits long for a dead one.
Here it is silence that is limited. Other stores (S3, GCS) bring limits of their own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, TypeVar

from pilekit.errors import visible

logger = logging.getLogger(__name__)

RETRY_AFTER = (0.5, 2.0, 8.0)
"""Seconds to wait before each further attempt."""

CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""So long may a web server take to accept a connection, and let the next byte wait."""

T = TypeVar("T")


def store_of(url: str) -> tuple[Any, str]:
    """The fsspec store of a URL, which may be chained, and the path in it; the store's own errors."""
    import fsspec

    schemes = {part.partition("://")[0] for part in url.split("::")} & {"http", "https"}
    return fsspec.core.url_to_fs(url, **{scheme: _web_options(scheme) for scheme in schemes})  # type: ignore[no-any-return]


def _web_options(scheme: str) -> dict[str, Any]:
    try:
        import aiohttp
    except ImportError:
        return {}  # fsspec says what is missing.
    from fsspec.config import conf

    configured = conf.get(scheme, {}).get("client_kwargs", {})
    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    return {"client_kwargs": {"timeout": limits, **configured}}


def retried(attempt: Callable[[], T], url: str) -> T:
    """What `attempt` returns, which is tried again after what may pass; its last error, if it always fails."""
    for wait in RETRY_AFTER:
        try:
            return attempt()
        except Exception as error:
            if not _may_pass(error):
                raise
            logger.warning("%s: %s; trying again in %g s", visible(url), reason_of(error), wait)
        time.sleep(wait)
    return attempt()


def reason_of(error: BaseException) -> str:
    """What went wrong with a store, in one line."""
    error = _cause(error)
    return visible(": ".join(filter(None, (type(error).__name__, str(error).split("\n", 1)[0]))), 300)


def is_missing(error: BaseException) -> bool:
    """Whether the store answered that there is no such file."""
    cause = _cause(error)
    return isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)


def _cause(error: BaseException) -> BaseException:
    """The HTTP store calls everything that goes wrong at opening a missing file; what it was is the cause."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _may_pass(error: BaseException) -> bool:
    error = _cause(error)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | ValueError | TypeError):
        return False
    if isinstance(error, ImportError | NotImplementedError | MemoryError):
        return False
    status = getattr(error, "status", None)
    return not isinstance(status, int) or status in (408, 429) or status >= 500
