"""`Encoder`: turns a lane's documents into tokens, by a tokenizer or by copying the ids of token files.

A lane in one order of all documents packs a window at a time, so it takes a window's documents as tokens. A lane that
draws (drawn_windows.py) takes parts of documents from several sequences. It needs their lengths first, and their ids
when its window is full. So ids of token files are copied only then: such a lane holds none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError
from pilekit.stream.pack.lane_windows import parts_of_windows
from pilekit.stream.pack.window import Layout, TokenizedDocuments
from pilekit.stream.read.lane_documents import NUMBER, SHARD, LaneDocuments
from pilekit.stream.read.token_files import TokenIndex
from pilekit.tokenize import Tokenizer
from pilekit.tokenize.files.stored_ids import StoredIds, copied, join_stored

MOST_DRAWN = 256
"""Documents that a lane which draws has of a subset at a time, at most."""


@dataclass(frozen=True)
class Encoder:
    """Gives documents as tokens.

    tokenizer     None: documents are not tokenized. With an EOD, seq_len 1 and packing "concat", each becomes one row
    token_files   by a document's shard number, if documents come from token files
    """

    tokenizer: Tokenizer | None
    token_files: Sequence[TokenIndex] = ()

    def encoded(self, pieces: Iterable[LaneDocuments], layout: Layout) -> Iterator[TokenizedDocuments]:
        """The documents of `pieces`, encoded, in parts of at most a window.

        PilekitError for an id of a token file that the tokenizer does not have.
        """
        if self.tokenizer is None:
            nothing = np.zeros(0, np.uint32)
            for piece in pieces:
                if len(piece):
                    yield TokenizedDocuments(nothing, np.zeros(len(piece) + 1, np.int64), piece.table, piece.texts)
            return
        for parts in parts_of_windows(pieces, _characters, layout):
            tokenized = [self._tokenized(parts, self.tokenizer)]
            parts.clear()
            yield tokenized.pop()

    def to_draw(self, pieces: Iterable[LaneDocuments], layout: Layout) -> Iterator[LaneDocuments]:
        """The documents of `pieces` with `StoredIds` as texts, at most `MOST_DRAWN` at a time.

        Of texts a window at a time is tokenized. Ids of token files are not read: `check` them when they are.
        """
        if not self.token_files:
            for documents in self.encoded(pieces, layout):
                offsets = documents.offsets
                arrays = np.zeros(len(documents), np.int64), offsets[:-1], np.diff(offsets)
                yield LaneDocuments(documents.table, StoredIds([], [documents.ids], *arrays))
            return
        # Several units at once, because units of a small share have few documents.
        for parts in parts_of_windows(pieces, _characters, replace(layout, window=MOST_DRAWN, most_tokens=1 << 62)):
            stored = join_stored([cast(StoredIds, part.texts) for part in parts])
            yield LaneDocuments(np.concatenate([part.table for part in parts]), stored)

    def check(self, documents: TokenizedDocuments, largest: int) -> None:
        """PilekitError for an id of a token file that the tokenizer does not have; `largest` is the largest id."""
        if self.tokenizer is None or not self.token_files or largest < self.tokenizer.vocab_size:
            return
        at = int(np.argmax(documents.ids >= self.tokenizer.vocab_size))
        document = np.searchsorted(documents.offsets, at, side="right") - 1
        shard, number = documents.table[document, [SHARD, NUMBER]].tolist()
        path, number = self.token_files[shard].place(number)
        raise PilekitError(
            f"{path}: document {number:,} has the id {documents.ids[at]:,}, but "
            f"{self.tokenizer.path} has {self.tokenizer.vocab_size:,} ids; give the tokenizer that made the file"
        )

    def _tokenized(self, parts: list[LaneDocuments], tokenizer: Tokenizer) -> TokenizedDocuments:
        """These parts as one."""
        table = parts[0].table if len(parts) == 1 else np.concatenate([part.table for part in parts])
        if not self.token_files:
            return TokenizedDocuments(*tokenizer.encode_batch([text for part in parts for text in part.texts]), table)
        ids, offsets, largest = copied(join_stored([cast(StoredIds, part.texts) for part in parts]))
        documents = TokenizedDocuments(ids, offsets, table)
        self.check(documents, largest)
        return documents


def _characters(piece: LaneDocuments) -> Int64:
    """The characters or ids of each document + 1, a bound on its tokens that seldom fails."""
    texts = piece.texts
    return 1 + (texts.lengths if isinstance(texts, StoredIds) else np.fromiter(map(len, texts), np.int64, len(texts)))
