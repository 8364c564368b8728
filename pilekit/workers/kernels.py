"""Compiled loops: the decorator of all numba kernels.

Kernels release the GIL, so that other threads run at the same time. Their machine code is cached on disk, so only the
first run on a machine waits for the compiler. Importing this module imports numba and starts its runtime, which takes
0.2 s; worker processes inherit both (see workers/local.py). Each kernel is loaded when it is first called.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar, cast


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Pause the collector of cycles: numba's import makes many objects, and each would be visited several times."""
    was_enabled, had_frozen = gc.isenabled(), gc.get_freeze_count() > 0
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # All objects so far become old, and the next collection does not visit them.
        if not had_frozen:
            gc.unfreeze()
        if was_enabled:
            gc.enable()


with _collector_paused():
    import numba
    import numba.np.arrayobj  # Machine code that makes arrays imports it.
    from numba.core.caching import FunctionCache
    from numba.core.registry import cpu_target
    from numba.core.runtime.nrt import rtsys

F = TypeVar("F", bound=Callable[..., Any])

rtsys.initialize(cpu_target.target_context)


class _MachineCode(FunctionCache):
    """Loads cached machine code without preparing the compiler, which takes 0.25 s and imports SciPy.

    Machine code needs numba's runtime alone. The compiler prepares itself when a kernel is not in the cache.
    """

    def load_overload(self, signature: Any, target: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            return self._load_overload(signature, target)  # type: ignore[no-untyped-call]


def compiled(*signatures: Any) -> Callable[[F], F]:
    """A decorator that compiles a function: on import for numba `signatures`, without any on its first call."""

    def decorate(function: F) -> F:
        kernel: Any = numba.njit(nogil=True)(function)
        with suppress(RuntimeError):  # numba's error if neither the package's nor the user's cache folder is writable
            kernel._cache = _MachineCode(function)  # type: ignore[no-untyped-call]
        for signature in signatures:
            kernel.compile(signature)
        if signatures:
            kernel.disable_compile()
        return cast(F, kernel)

    return decorate
