"""Bytes of tensors that are alive, as operations make them and as they go."""

from __future__ import annotations

import weakref
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LivingBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes made inside that still live (`bytes`), the most at once (`peak`), and the `largest` tensor's."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes = self.peak = self.largest = 0
        self._known: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func._schema.name in ("aten::detach", "aten::t") or any(r.alias_info for r in func._schema.returns):
            return result
        for tensor in result if isinstance(result, tuple | list) else (result,):
            if isinstance(tensor, Tensor) and (key := tensor.untyped_storage()._cdata) not in self._known:
                self._known.add(key)
                size = tensor.untyped_storage().nbytes()
                self.bytes, self.largest = self.bytes + size, max(self.largest, size)
                self.peak = max(self.peak, self.bytes)
                weakref.finalize(tensor.untyped_storage(), self._gone, key, size)
        return result

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.bytes -= size
