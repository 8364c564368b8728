"""pilekit: read, trust, count, cut, deduplicate, stream, train on and evaluate Pile-format corpora.

`__init__.pyi` lists the public names and their files, for type checkers and editors too. The names load on first use,
so `import pilekit` takes milliseconds. A command that only counts documents must not wait seconds for a deep-learning
library. For the same reason `from pilekit import *` leaves out the names that need torch; import those by name.
"""

from __future__ import annotations

import importlib
import logging
import re
import sys
from types import FunctionType, ModuleType
from typing import Any

from pilekit.version import __version__ as __version__

for _name in ("torchao", "torch.utils._pytree"):  # transformers imports torchao, which warns of each CUDA library
    if logging.getLogger(_name).level == logging.NOTSET:
        logging.getLogger(_name).setLevel(logging.ERROR)

# The stub `__init__.pyi` is the list of names; reading it takes 0.1 ms.
with open(__file__ + "i", encoding="utf-8") as _stub:  # noqa: PTH123 (importing pathlib takes milliseconds)
    _HOME = {name: module for module, name in re.findall(r"^from ([\w.]+) import (\w+) as", _stub.read(), re.MULTILINE)}
del _HOME["__version__"]

_NEED_TORCH = {
    "Batch",
    "Continuation",
    "TrainResult",
    "Pack",
    "PileStream",
    "Prompt",
    "PruneResult",
    "Trainer",
    "bits_per_byte",
    "document_mask",
    "embed_corpus",
    "generate",
    "memorised",
    "prompts_of",
    "prune_model",
}

__all__ = ["__version__", *sorted(set(_HOME) - _NEED_TORCH)]


def __getattr__(name: str) -> Any:
    home = _HOME.get(name)
    if home is None:
        raise _wrong_name(name)
    value = getattr(importlib.import_module(home), name)
    if isinstance(value, FunctionType):
        from pilekit.display.wrong_names import with_nearest_keywords

        value = with_nearest_keywords(value)
    globals()[name] = value
    return value


def _wrong_name(name: str) -> Exception:
    """The error that names the right word, with `from pilekit import name` too."""
    from importlib.util import find_spec

    from pilekit.display.wrong_names import public_name, with_answer

    answer = "" if name.startswith("_") else public_name(name, _HOME)
    # Before an import statement asks for a name, it asks whether there is one, and would drop the answer.
    if answer and sys._getframe(2).f_code.co_name == "_handle_fromlist" and find_spec(f"pilekit.{name}") is None:
        return ImportError(f"cannot import name {name!r} from 'pilekit'{answer}", name="pilekit")
    return with_answer(f"module 'pilekit' has no attribute {name!r}", answer)


def __dir__() -> list[str]:
    return sorted(["__version__", *_HOME])


class _Package(ModuleType):
    """This module. Python's import sets each imported folder here, and some have the name of a command."""

    def __setattr__(self, name: str, value: Any) -> None:
        if type(value) is ModuleType and hasattr(value, "__path__"):  # a folder
            from pilekit.display.wrong_names import Room

            value.__class__ = Room
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
