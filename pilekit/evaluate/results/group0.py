"""`--group0`: the tenth of the Pile's test set that the paper scored.

The paper's scorer (EleutherAI/lm_perplexity) ships lists of document numbers: a folder per subset, under its own short
names, with a file `group0.json` in each, a JSON list of whole numbers. A number counts the documents of its subset in
the order of test.jsonl, from 0. Three subsets (Ubuntu IRC, BookCorpus2, PhilPapers) have no list, and the paper scored
all of their documents.

Read are that folder, and one JSON file `{"ArXiv": [3, 14], ...}` of the same numbers. So the test set must be read
whole and in its order: whoever filters subsets or counts documents must do so behind `Group0.of`, or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from pilekit.corpus import Manifest, resolve_subsets
from pilekit.corpus.shard import split_of
from pilekit.documents import DocumentBatch
from pilekit.errors import PilekitError, visible

LIST_FILE = "group0.json"
_MOST_BYTES = 64 << 20
"""The largest list that the paper's scorer ships is 40 kB; of a file beyond this, somebody meant another."""
_LARGEST = 1 << 40


class Group0:
    """Which documents of test the paper scored; counts the documents it is shown, so it is good for one reading.

    lists   for each subset with a list, the numbers of its documents
    whole   subsets of which every document counts
    """

    def __init__(self, lists: Mapping[str, frozenset[int]], whole: frozenset[str]) -> None:
        self.lists = dict(lists)
        self.whole = whole
        self._met = dict.fromkeys(self.lists, 0)

    def anew(self) -> Group0:
        """The same lists, of which nothing has been met yet."""
        return Group0(self.lists, self.whole)

    @property
    def fingerprint(self) -> str:
        """Of what is listed, however it was stored."""
        listed = {name: sorted(numbers) for name, numbers in sorted(self.lists.items())}
        text = json.dumps([listed, sorted(self.whole)], separators=(",", ":"))
        return f"xxh3:{xxhash.xxh3_128_hexdigest(text.encode(errors='surrogatepass'))}"

    def of(self, batch: DocumentBatch) -> DocumentBatch:
        """The listed documents of `batch`; batches come in the order of the corpus, none left out.

        PilekitError for a shard that is not of test by its name.
        """
        split = split_of(batch.shard)
        if split not in ("test", None):
            raise PilekitError(
                f"{visible(batch.shard, 200)}: is a {split} shard, and group0 numbers the documents of test; name the "
                "test shard only"
            )
        keep = []
        for subset in batch.subsets:
            listed = self.lists.get(subset)
            if listed is None:
                keep.append(subset in self.whole)
            else:
                keep.append(self._met[subset] in listed)
                self._met[subset] += 1
        return batch.where(keep)

    def unmet(self) -> dict[str, int]:
        """How many listed documents have not been shown, for each subset that has such: 0 behind the whole test set."""
        left = {name: sum(number >= self._met[name] for number in numbers) for name, numbers in self.lists.items()}
        return {name: count for name, count in left.items() if count}


def load_group0(path: str | Path, manifest: Manifest) -> Group0:
    """The lists in a folder of lm_perplexity's (`assets/test_subsample_indices`), or in one JSON file.

    Every document counts of subsets that the manifest says the paper scored whole, unless they have a list; no document
    of others without one.

    PilekitError, naming file and entry, for a path that is missing or cannot be read, for what is no JSON or not of
    this form, for a subset that is unknown or there twice, and for a number that is negative, repeated or no number.
    """
    path = Path(path)
    found = _in_folder(path, manifest) if path.is_dir() else _in_file(path, manifest)
    tenths = any(subset.held_out.tenth_documents for subset in manifest.subsets)
    whole = (subset.name for subset in manifest.subsets if tenths and not subset.held_out.tenth_documents)
    return Group0(found, frozenset(whole) - set(found))


def _in_folder(path: Path, manifest: Manifest) -> dict[str, frozenset[int]]:
    found: dict[str, frozenset[int]] = {}
    for file in sorted(path.glob(f"*/{LIST_FILE}")):
        name = _subset(file.parent.name, str(file), manifest)
        if name in found:
            raise PilekitError(f"{visible(str(file))}: is a second list of {visible(name, 80)}; remove one")
        found[name] = _numbers(_json(file), str(file), "")
    if not found:
        raise PilekitError(
            f"{visible(str(path))}: has no <subset>/{LIST_FILE}; give the folder assets/test_subsample_indices of "
            "EleutherAI/lm_perplexity, or a JSON file of subsets and numbers"
        )
    return found


def _in_file(path: Path, manifest: Manifest) -> dict[str, frozenset[int]]:
    given = _json(path)
    if not isinstance(given, _Object):
        raise PilekitError(
            f'{visible(str(path))}: holds {_kind(given)}, not an object such as {{"ArXiv": [3, 14]}}; for the lists of '
            "EleutherAI/lm_perplexity give the folder assets/test_subsample_indices"
        )
    found: dict[str, frozenset[int]] = {}
    for key, numbers in given:
        name = _subset(key, str(path), manifest)
        if name in found:
            raise PilekitError(f"{visible(str(path))}: has {visible(name, 80)} twice; keep one")
        found[name] = _numbers(numbers, str(path), f"{visible(key, 80)}: ")
    if not found:
        raise PilekitError(f"{visible(str(path))}: lists no subset, so no document would be scored; name some")
    return found


class _Object(list[tuple[str, Any]]):
    """A JSON object as its pairs, so that a key given twice is seen."""


def _json(path: Path) -> Any:
    shown = visible(str(path))
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise PilekitError(f"{shown}: is larger than {_MOST_BYTES >> 20} MiB, so it is no list of documents")
        return json.loads(path.read_bytes(), object_pairs_hook=_Object)
    except FileNotFoundError:
        raise PilekitError(f"{shown}: no such file or folder; check the path") from None
    except OSError as error:
        raise PilekitError(f"{shown}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise PilekitError(f"{shown}: is not JSON: {visible(str(error), 200)}; get the file again") from error


def _subset(typed: str, place: str, manifest: Manifest) -> str:
    try:
        return resolve_subsets(typed, manifest=manifest)[0]
    except PilekitError as error:
        raise PilekitError(f"{visible(place)}: {error}") from None


def _numbers(given: Any, place: str, entry: str) -> frozenset[int]:
    """The list as a set; `entry` is put before what is wrong with it."""
    where = f"{visible(place)}: {entry}"
    if not isinstance(given, list) or isinstance(given, _Object):
        raise PilekitError(f"{where}holds {_kind(given)}, not a list of document numbers")
    for position, number in enumerate(given):
        if type(number) is not int or not 0 <= number < _LARGEST:
            shown = visible(repr(number), 40) if isinstance(number, int | float | str) else _kind(number)
            raise PilekitError(f"{where}entry {position} is {shown}, not a document number, which counts from 0")
    numbers: set[int] = set()
    for number in given:
        if number in numbers:
            raise PilekitError(f"{where}lists document {number} twice; keep one")
        numbers.add(number)
    return frozenset(numbers)


def _kind(value: Any) -> str:
    names = {_Object: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")
