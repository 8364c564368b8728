"""Where a stream stands: a `Place`, and the fingerprint that says which stream it is a place of.

A place is (shard, document, token): the next row begins with the shard's first wanted document whose number is at
least `document`, after `token` of its tokens, EOD counted. It is a function of the batches handed out and of nothing
else: not of what was read ahead, nor of how often the run was resumed. No token is stored in it, because a pass in file
order is rebuilt by reading one document again.

A place means something only on the same sequence of tokens. So the fingerprint holds all that this sequence depends on,
and a state that does not fit is refused with the field that differs. `batch_size` is not among them: a place is a
border between rows, and rows do not depend on how many of them make a batch.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson
import xxhash

from pilekit.corpus import Corpus
from pilekit.errors import PilekitError, visible
from pilekit.tokenize import Tokenizer

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class Place:
    """A border between two rows.

    shard         name of the shard in which the next row begins
    document      number of the document with which it begins; if no such document is wanted, the next one that is
    token         tokens of that document, EOD counted, that stand in earlier rows
    new_subsets   labels met so far that the manifest does not list, in the order of their first document
    """

    shard: str
    document: int = 0
    token: int = 0
    new_subsets: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """As a dict of JSON types."""
        return {
            "shard": self.shard,
            "document": self.document,
            "token": self.token,
            "new_subsets": list(self.new_subsets),
        }


def fingerprint(
    corpus: Corpus,
    tokenizer: Tokenizer,
    *,
    pad_id: int,
    seq_len: int,
    packing: str,
    subsets: Sequence[str] | None,
    seed: int,
) -> dict[str, Any]:
    """All that the sequence of rows depends on, as a small dict of JSON types."""
    manifest = corpus.manifest
    sizes = [[shard.name, shard.size] for shard in corpus.shards]
    return {
        "shards": {
            "count": len(sizes),
            "bytes": sum(size or 0 for _, size in sizes),
            "xxh3": xxhash.xxh3_128_hexdigest(orjson.dumps(sizes)),
        },
        "record": {"text_field": manifest.text_field, "label_path": manifest.label_path},
        "subset_names": xxhash.xxh3_128_hexdigest(orjson.dumps([subset.name for subset in manifest.subsets])),
        "tokenizer": tokenizer.fingerprint,
        "special_tokens": {"treated_as": tokenizer.special_tokens, "eos_id": tokenizer.eos_id, "pad_id": pad_id},
        "backend": f"{tokenizer.backend} {importlib.metadata.version(tokenizer.backend)}",
        "seq_len": seq_len,
        "packing": packing,
        "subsets": None if subsets is None else sorted(subsets),
        "seed": seed,
    }


def place_from_state(state: Mapping[str, Any], own: Mapping[str, Any]) -> Place:
    """The place in a state made by `PileStream.state_dict`; `own` is the fingerprint of the stream that loads it.

    PilekitError if it is not such a state, or one of another sequence, naming the field that differs.
    """
    if not isinstance(state, Mapping) or "version" not in state:
        raise PilekitError("not the state of a PileStream: it has no version; give what state_dict() returned")
    if state["version"] != STATE_VERSION:
        raise PilekitError(
            f"the stream's state has version {visible(str(state['version']), 20)}, and this pilekit reads version "
            f"{STATE_VERSION}; resume with the pilekit that wrote it"
        )
    try:
        theirs = dict(state["fingerprint"])
        place = Place(state["shard"], state["document"], state["token"], tuple(state["new_subsets"]))
    except (KeyError, TypeError, ValueError) as error:
        raise PilekitError(f"the stream's state is incomplete ({error!r}); give what state_dict() returned") from error
    counts = (place.document, place.token)
    names = (place.shard, *place.new_subsets)
    if not all(type(count) is int and count >= 0 for count in counts) or not all(type(name) is str for name in names):
        raise PilekitError(
            "the stream's state holds no valid (shard, document, token); give what state_dict() returned"
        )
    for field in own:
        if theirs.get(field) != own[field]:
            raise PilekitError(
                f"the stream's state does not fit: its {field} is {_shown(theirs.get(field))}, here it is "
                f"{_shown(own[field])}; use the settings and files of the run that wrote it, or start without the state"
            )
    return place


def _shown(value: Any) -> str:
    return visible(orjson.dumps(value).decode(), 200)
