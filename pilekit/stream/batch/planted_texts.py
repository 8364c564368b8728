"""`PlantedTexts`: the texts of an entry of `plant`, read and tokenized, and the row that each makes.

All that can be wrong with an entry, its file, or one of its texts is found here, before the stream's first step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from pilekit.artifacts.checked import checked, paths_as_text
from pilekit.corpus import Corpus, Manifest
from pilekit.corpus.shard import STANDARD_INPUT
from pilekit.corpus.shuffle import Int64, UInt64
from pilekit.errors import PilekitError, counted, shortened
from pilekit.shards.read.reader import read
from pilekit.stream.pack.packings import Rows
from pilekit.stream.pack.window import BEGIN, TokenizedDocuments, Window, window_of
from pilekit.stream.read.lane_documents import SKIPPED, document_table
from pilekit.stream.settings import Planting
from pilekit.tokenize import Tokenizer


@dataclass(frozen=True)
class PlantedTexts:
    """The texts of an entry of `plant`.

    planting   the entry
    path       its file
    name       the name of its file as a shard
    shard      the number of this shard, after those of the corpus
    numbers    int64 [texts]: their numbers in the shard
    keys       uint64 [texts]: hashes of the texts
    copies     int64 [texts]: how often each is planted
    ids        uint32 [tokens], all texts one after another
    offsets    int64 [texts + 1], from 0: text i is `ids[offsets[i]:offsets[i + 1]]`
    """

    planting: Planting
    path: str
    name: str
    shard: int
    numbers: Int64
    keys: UInt64
    copies: Int64
    ids: npt.NDArray[np.uint32]
    offsets: Int64

    @property
    def content(self) -> str:
        """A hash of its texts, in their order."""
        return xxhash.xxh3_128_hexdigest(self.keys.astype("<u8").tobytes() + self.numbers.astype("<i8").tobytes())

    def identity(self) -> dict[str, Any]:
        """What a state says of it, as JSON types."""
        steps = [self.planting.begin, self.planting.end]
        return {"file": self.name, "content": self.content, "copies": self.copies.tolist(), "steps": steps}

    def window(self, text: int, subset: int, append_eod: bool, replaced: Window) -> Window:
        """The row of a text, in place of the only row of `replaced`."""
        ids = self.ids[self.offsets[text] : self.offsets[text + 1]]
        lost = replaced.pieces
        skipped = lost[lost[:, BEGIN] == 0, SKIPPED].sum()  # bad lines count in whatever row comes after them
        table = document_table(1, shard=self.shard, number=self.numbers[text], subset=subset, skipped=skipped)
        none, border = np.zeros(1, np.int64), np.array([0, 1], np.int64)
        rows = Rows(none, none, np.array([len(ids) + append_eod], np.int64), border)
        documents = TokenizedDocuments(ids, border * len(ids), table)
        return window_of(documents, rows, replaced.row_keys, replaced.after)


def planted_texts(
    plantings: Any, corpus: Corpus, tokenizer: Tokenizer, *, seq_len: int, append_eod: bool
) -> list[PlantedTexts]:
    """Read the files of `plant` and tokenize their texts; their shard numbers follow those of the corpus.

    PilekitError for a wrong entry, a file that cannot be read or has the name of another shard, numbers of copies that
    do not fit its texts, and a text that is empty or longer than a row.
    """
    names = [shard.name for shard in corpus.shards]
    entries: list[PlantedTexts] = []
    listed: list[Planting] = checked(paths_as_text(plantings), list[Planting], "plant")
    for planting in listed:
        path, name, numbers, texts = _texts(planting, corpus.manifest)
        keys = np.array([xxhash.xxh3_64_intdigest(text.encode()) for text in texts], np.uint64)
        ids, offsets = tokenizer.encode_batch(texts)
        _check_lengths(path, numbers, np.diff(offsets), seq_len, append_eod)
        same = next((entry for entry in entries if entry.name == name), None)
        shard = len(names) if same is None else same.shard
        copies = _copies(planting, path, len(texts))
        entry = PlantedTexts(planting, path, name, shard, numbers, keys, copies, ids, offsets)
        if name in names if same is None else same.content != entry.content:
            raise PilekitError(f"{path}: another shard has the name {shortened(name, 100)} too; rename the file")
        if same is None:
            names.append(name)
        entries.append(entry)
    return entries


def _texts(planting: Planting, manifest: Manifest) -> tuple[str, str, Int64, list[str]]:
    """(path, name, numbers, texts) of an entry's file. PilekitError unless it is one file of documents."""
    corpus = Corpus(planting.file, manifest)
    if len(corpus.shards) != 1 or corpus.shards[0].path == STANDARD_INPUT:
        raise PilekitError(f"{planting.file}: must be one file, which every process can read; name a file of documents")
    numbers: list[int] = []
    texts: list[str] = []
    (shard,) = corpus.shards
    if shard.size != 0:  # an empty shard is damaged, but an empty file may be a list of nothing
        with read(shard, manifest=manifest) as batches:
            for batch in batches:
                numbers += batch.numbers.tolist()
                texts += batch.texts
    return shard.path, shard.name, np.array(numbers, np.int64), texts


def _copies(planting: Planting, path: str, texts: int) -> Int64:
    """How often each of so many texts is planted: one number for all, or the numbers of the list in turn."""
    listed = [planting.copies] if isinstance(planting.copies, int) else planting.copies
    if texts % len(listed):
        raise PilekitError(
            f"{path}: has {counted(texts, 'text')}, and copies has {len(listed)} numbers, which the texts take in "
            "turn; give one number, one for each text, or as many texts for each number"
        )
    return np.resize(np.array(listed, np.int64), texts)


def _check_lengths(path: str, numbers: Int64, lengths: Int64, seq_len: int, append_eod: bool) -> None:
    """PilekitError for a text without tokens, and for one longer than a row."""
    for wrong in np.flatnonzero((lengths == 0) | (lengths + append_eod > seq_len)).tolist():
        tokens = counted(int(lengths[wrong]), "token")
        eod = " and an end-of-document token" if append_eod else ""
        remedy = (
            f"more than a row of {seq_len:,}; shorten it, or give a larger seq_len"
            if lengths[wrong]
            else "which is no text to plant; remove the line"
        )
        raise PilekitError(f"{path}, line {numbers[wrong] + 1:,}: has {tokens}{eod}, {remedy}")
