"""From a URL to its fsspec store, with time-outs, and retries when a store fails.

Connections drop and servers restart. Temporary failures are retried a few times, and every wait is limited. Permanent
failures (no such file, no permission, a server without range requests) raise at once.

fsspec's HTTP store limits a whole request to five minutes, which stops a good download and waits long for a dead one.
Here the silence between two bytes is limited. Other stores (S3, GCS) have limits of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from pilekit.errors import message_logger, shortened

logger = message_logger(__name__)

RETRY_AFTER = (0.5, 2.0, 8.0)
"""Seconds to wait before each further attempt."""

CONNECT_SECONDS = 30.0
SILENCE_SECONDS = 30.0
"""The longest time a web server may take to accept a connection, and to send the next byte."""

T = TypeVar("T")


def store_of(url: str) -> tuple[Any, str]:
    """The fsspec store of a URL, which may be chained, and the path in it; raises the store's own errors."""
    import fsspec

    schemes = {part.partition("://")[0] for part in url.split("::")} & {"http", "https"}
    return fsspec.core.url_to_fs(url, **{scheme: _web_options(scheme) for scheme in schemes})  # type: ignore[no-any-return]


def _web_options(scheme: str) -> dict[str, Any]:
    try:
        import aiohttp
    except ImportError:
        return {}  # fsspec's error names the missing package.
    from fsspec.config import conf

    configured = conf.get(scheme, {}).get("client_kwargs", {})
    limits = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
    return {"client_kwargs": {"timeout": limits, **configured}}


def retry(attempt: Callable[[], T], url: str) -> T:
    """The result of `attempt`, which is repeated after temporary failures; raises the last error."""
    for wait in RETRY_AFTER:
        try:
            return attempt()
        except Exception as error:
            if not _is_temporary(error):
                raise
            logger.warning("%s: %s; trying again in %g s", url, reason_of(error), wait)
        time.sleep(wait)
    return attempt()


def reason_of(error: BaseException) -> str:
    """The reason of a store's error, in one line."""
    error = cause_of(error)
    return shortened(": ".join(filter(None, (type(error).__name__, str(error).split("\n", 1)[0]))), 300)


def is_missing(error: BaseException) -> bool:
    """Whether the store answered that the file does not exist."""
    cause = cause_of(error)
    return isinstance(cause, FileNotFoundError) or getattr(cause, "status", None) in (404, 410)


def cause_of(error: BaseException) -> BaseException:
    """The HTTP store raises FileNotFoundError for every error at opening; its cause is the real error."""
    while isinstance(error, FileNotFoundError) and error.__cause__ is not None:
        error = error.__cause__
    return error


def _is_temporary(error: BaseException) -> bool:
    error = cause_of(error)
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError | ValueError | TypeError):
        return False
    if isinstance(error, ImportError | NotImplementedError | MemoryError):
        return False
    status = getattr(error, "status", None)
    return not isinstance(status, int) or status in (408, 429) or status >= 500
