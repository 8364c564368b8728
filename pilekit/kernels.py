"""Compiled loops: how every numba kernel of pilekit is made.

Kernels release the GIL, so that threads around them go on, and their machine code is cached on disk, so that only the
first run on a machine waits for the compiler. Importing this module imports numba, which takes 0.2 s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def compiled(signature: Any = None) -> Callable[[F], F]:
    """A decorator that compiles a function: on import for a numba `signature`, without one on its first call."""

    def decorate(function: F) -> F:
        try:
            return cast(F, numba.njit(signature, nogil=True, cache=True)(function))
        except RuntimeError:  # numba's word for: neither the package's folder nor the user's cache folder is writable
            return cast(F, numba.njit(signature, nogil=True)(function))

    return decorate
