"""The seal of a state: a hash of each of its fields, so that one that was damaged or edited is found, and named.

Nothing else could tell: another size of units, or another place of a lane, is as good a number as the right one, and a
run would go on somewhere else in the corpus without a word. It guards against slips, not against malice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import xxhash

from pilekit.errors import PilekitError, visible


def sealed(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state, with a new "seal" at its end: by field a hash of its JSON; "plan" by its own fields."""
    fields = {name: value for name, value in state.items() if name != "seal"}
    return {**fields, "seal": {name: _hash(value) for name, value in _flat(fields).items()}}


def check_seal(state: Mapping[str, Any]) -> None:
    """PilekitError that names the field which is missing, was added, or is not as it was when the state was sealed."""
    seal, fields = state.get("seal"), _flat({name: value for name, value in state.items() if name != "seal"})
    if not isinstance(seal, Mapping):
        raise PilekitError("the stream's state is incomplete: it has no seal; give what state_dict() gave")
    for name in {**seal, **fields}:
        if name not in fields:
            how = "is missing"
        elif name not in seal:
            how = "is not among what was saved"
        elif seal[name] != _hash(fields[name]):
            how = f"is {visible(repr(fields[name]), 80)}, which is not what was saved"
        else:
            continue
        raise PilekitError(
            f"the stream's state was changed or damaged: its {visible(str(name), 80)} {how}; give what state_dict() "
            "gave, as it was"
        )


def _flat(fields: Mapping[str, Any]) -> dict[str, Any]:
    plan = fields.get("plan")
    if not isinstance(plan, Mapping):
        return dict(fields)
    others = {name: value for name, value in fields.items() if name != "plan"}
    return {**others, **{f"plan.{name}": value for name, value in plan.items()}}


def _hash(value: object) -> str | None:
    """16 hexadecimal digits; None for what is not JSON, and so not what was sealed."""
    try:
        return xxhash.xxh3_64_hexdigest(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
    except TypeError:
        return None
