"""A plain reference of PileStream, written from its contract: a corpus in memory, lists, and one process.

It shares only `mix` and `permutation` with pilekit.stream; their definitions are part of the contract. On any number of
ranks and workers, with any accumulation, a stream must give the steps of `optimizer_steps`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from pathlib import Path
from typing import Literal, NamedTuple

import tokenizers

from pilekit.corpus.shuffle import mix, permutation

UNITS, DOCUMENTS, REPEATS, SHARDS, TURNS, BLOCKS = 1, 2, 3, 4, 5, 6
"""The first word of the key of each random choice."""


@dataclass(frozen=True)
class Line:
    """A document of the corpus."""

    shard: str
    number: int
    subset: str
    text: str


@dataclass(frozen=True)
class Plan:
    """All settings that decide a stream's order, besides the corpus and the tokenizer.

    shards   names of all shards of the corpus, sorted
    unit     by default the value of a new run
    weights  of documents by (shard, number), where not 1; a unit has the copies that its heaviest document needs
    most_tokens   a window with so many tokens takes no further document
    in_turn  the sequential plan: lanes of whole shards, in another order in each epoch, whose documents are permuted
             inside blocks of `shuffle_block` lines
    """

    shards: tuple[str, ...]
    rows: int
    columns: int
    global_batch_size: int
    seq_len: int
    seed: int = 0
    window: int = 256
    packing: Literal["best_fit", "concat", "none"] = "best_fit"
    unit: int | None = None
    subsets: tuple[str, ...] | None = None
    repeats: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[tuple[str, int], float] = field(default_factory=dict)
    shuffle: bool = True
    keep: Callable[[Line], bool] | None = None
    in_turn: bool = False
    shuffle_block: int = 4096
    most_tokens: int = 512 * 1024

    @property
    def lanes(self) -> int:
        return self.rows * self.columns


NOTHING = Line("", 0, "", "")
"""Of a shard without documents."""


class Document(NamedTuple):
    """One use of a document by a lane; `tokens` with its EOD, if one is appended."""

    lane: int
    position: int
    order: int
    line: Line
    tokens: list[int]


class Piece(NamedTuple):
    """The part of a document in a row: its tokens from `begin` on."""

    document: Document
    begin: int
    length: int


class Row(NamedTuple):
    """A row as a model sees it, and its documents by doc_id; `subsets` has a name per token, None for a pad."""

    documents: tuple[tuple[str, int], ...]
    input_ids: tuple[int, ...]
    labels: tuple[int, ...]
    position_ids: tuple[int, ...]
    doc_ids: tuple[int, ...]
    subsets: tuple[str | None, ...]


class Encoder:
    """Encodes texts with the reference library, one at a time, each text once, and appends EOD."""

    def __init__(self, tokenizer_file: Path) -> None:
        self._tokenizer = tokenizers.Tokenizer.from_file(str(tokenizer_file))
        self._tokenizer.encode_special_tokens = True
        vocabulary = self._tokenizer.get_vocab()
        self.eos_id, self.pad_id = vocabulary["<|endoftext|>"], vocabulary["<|padding|>"]
        self._known: dict[str, list[int]] = {}

    def __call__(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = [*self._tokenizer.encode(text, add_special_tokens=False).ids, self.eos_id]
        return self._known[text]


def selected(lines: Iterable[Line], plan: Plan) -> list[Line]:
    """The documents that the stream uses, in the order of shards and lines."""
    chosen = [line for line in lines if plan.subsets is None or line.subset in plan.subsets]
    chosen = [line for line in chosen if plan.repeats.get(line.subset, 1.0) > 0]
    return sorted(chosen, key=lambda line: (line.shard, line.number))


def unit_of(documents: int, lanes: int) -> int:
    """Documents in a unit of a new run."""
    return max(1, min(256, documents // (16 * lanes)))


def is_used(plan: Plan, epoch: int, copy: int, line: Line) -> bool:
    """Whether this copy of a document is read in `epoch`."""
    factor = plan.repeats.get(line.subset, 1.0) * plan.weights.get((line.shard, line.number), 1.0)
    if copy < math.floor(factor):
        return True
    if copy > math.floor(factor):
        return False
    hashed = int(mix(plan.seed, REPEATS, epoch, plan.shards.index(line.shard), line.number))
    return (hashed >> 11) / 2**53 < factor - math.floor(factor)


def units_and_slots(lines: Iterable[Line], plan: Plan, lane: int) -> tuple[list[list[Line]], list[tuple[int, int]]]:
    """(the units, the pairs of a copy and the number of a unit that stand in an epoch)"""
    documents = selected(lines, plan)
    if plan.in_turn:
        units = [[line for line in documents if line.shard == shard] for shard in plan.shards[lane :: plan.lanes]]
    else:
        size = plan.unit or unit_of(len(documents), plan.lanes)
        units = [documents[begin : begin + size] for begin in range(0, len(documents), size)]
    factors = [plan.repeats.get(name, 1.0) for name in plan.subsets] if plan.subsets else [1.0, *plan.repeats.values()]
    needed = [max(plan.weights.get((line.shard, line.number), 1.0) for line in [*unit, NOTHING]) for unit in units]
    copies = [max(1, math.ceil(max(factors) * weight)) for weight in needed]
    slots = [(copy, unit) for copy in range(max(copies)) for unit in range(len(units)) if copy < copies[unit]]
    return units, slots


def lane_documents(
    lines: Iterable[Line], plan: Plan, encode: Callable[[str], list[int]], lane: int, epochs: range | None = None
) -> Iterator[Document]:
    """All documents of lane `lane`: endless, or of these epochs."""
    key: tuple[int, ...] = (UNITS,)
    first, stride = lane, plan.lanes
    if plan.in_turn:
        key, first, stride = (SHARDS, lane), 0, 1
    units, slots = units_and_slots(lines, plan, lane)
    per_epoch = len(slots)
    order_of_epoch: dict[int, list[int]] = {}
    position = first + (epochs.start * per_epoch if epochs else 0)
    while epochs is None or position < epochs.stop * per_epoch:
        epoch = position // per_epoch
        if epoch not in order_of_epoch:
            order = permutation(per_epoch, plan.seed, *key, epoch).tolist() if plan.shuffle else range(per_epoch)
            order_of_epoch = {epoch: list(order)}
        copy, number = slots[order_of_epoch[epoch][position % per_epoch]]
        if plan.in_turn:
            used = [line for line in units[number] if is_used(plan, epoch, copy, line)]
            used = [line for line in used if plan.keep is None or plan.keep(line)]
            index = plan.shards.index(plan.shards[lane :: plan.lanes][number])
            for line, order in in_blocks(used, plan, index, epoch, copy):
                yield Document(lane, position, order, line, encode(line.text))
            position += stride
            continue
        inside = list(range(len(units[number])))
        if plan.shuffle:
            inside = permutation(len(inside), plan.seed, DOCUMENTS, epoch, number, copy).tolist()
        for place, index in enumerate(inside):
            line = units[number][index]
            if is_used(plan, epoch, copy, line) and (plan.keep is None or plan.keep(line)):
                yield Document(lane, position, place, line, encode(line.text))
        position += stride


def in_blocks(lines: Sequence[Line], plan: Plan, shard: int, epoch: int, copy: int) -> Iterator[tuple[Line, int]]:
    """(document, order) of one use of a shard. Of a block's documents, the n-th given has the n-th number as order.

    A block also ends at 32 MiB characters, which the shards of these tests do not have.
    """
    if not plan.shuffle:
        yield from ((line, line.number) for line in lines)
        return
    for _, group in groupby(lines, key=lambda line: line.number // plan.shuffle_block):
        block = list(group)
        for first, place in zip(
            block, permutation(len(block), plan.seed, BLOCKS, shard, epoch, copy, block[0].number), strict=True
        ):
            yield block[place], first.number


def row_key(plan: Plan, row: Sequence[Piece]) -> int:
    first = row[0].document
    return int(mix(int(mix(plan.seed, first.lane, first.position, first.order)), row[0].begin))


def windows(documents: Iterator[Document], plan: Plan) -> Iterator[list[Document]]:
    """Cut a lane's documents into windows; the last of a finite lane may be short."""
    window: list[Document] = []
    for document in documents:
        window.append(document)
        if len(window) == plan.window or sum(len(one.tokens) for one in window) >= plan.most_tokens:
            yield window
            window = []
    if window:
        yield window


def pieces_of(document: Document, seq_len: int) -> list[Piece]:
    """Full rows while more than a row is left, then the rest; a document without tokens has no piece."""
    pieces = []
    begin = 0
    while len(document.tokens) - begin > seq_len:
        pieces.append(Piece(document, begin, seq_len))
        begin += seq_len
    if begin < len(document.tokens):
        pieces.append(Piece(document, begin, len(document.tokens) - begin))
    return pieces


def best_fit(window: Sequence[Sequence[Piece]], seq_len: int) -> list[list[Piece]]:
    """Best-fit-decreasing: each piece goes to the row that it fills most; of equal rows, to the row opened first."""
    pieces = [(-piece.length, index, piece.begin, piece) for index, document in enumerate(window) for piece in document]
    rows: list[list[Piece]] = []
    for _, _, _, piece in sorted(pieces, key=lambda entry: entry[:3]):
        free = [seq_len - sum(one.length for one in row) for row in rows]
        fitting = [(left, number) for number, left in enumerate(free) if left >= piece.length]
        if fitting:
            rows[min(fitting)[1]].append(piece)
        else:
            rows.append([piece])
    return rows


def lane_rows(documents: Iterator[Document], plan: Plan) -> Iterator[list[Piece]]:
    """The rows of a lane; a finite lane's last row may be short."""
    if plan.packing == "concat":
        yield from concat(documents, plan.seq_len)
        return
    turn = 0
    for window in windows(documents, plan):
        rows = window_rows([pieces_of(document, plan.seq_len) for document in window], plan, turn)
        turn += len(rows)
        yield from rows


def window_rows(window: Sequence[Sequence[Piece]], plan: Plan, turn: int) -> list[list[Piece]]:
    """The rows of a window, the first of which has this turn. The window is the pieces of each document."""
    if plan.packing == "best_fit":
        return sorted(best_fit(window, plan.seq_len), key=lambda row: row_key(plan, row))
    each = plan.global_batch_size // plan.rows
    rows = [[piece] for document in window for piece in document if len(piece.document.tokens) > 1]
    rows.sort(key=lambda row: (row[0].length, row_key(plan, row)))
    turns = sorted(range(turn, turn + len(rows)), key=lambda at: (int(mix(plan.seed, TURNS, at // each)), at))
    return [row for _, row in sorted(zip(turns, rows, strict=True), key=lambda pair: pair[0])]


def concat(documents: Iterator[Document], seq_len: int) -> Iterator[list[Piece]]:
    """Documents one after another, cut at the row's edge."""
    row: list[Piece] = []
    for document in documents:
        begin = 0
        while begin < len(document.tokens):
            free = seq_len - sum(piece.length for piece in row)
            length = min(free, len(document.tokens) - begin)
            row.append(Piece(document, begin, length))
            begin += length
            if length == free:
                yield row
                row = []
    if row:
        yield row


def columns(row: Sequence[Piece], seq_len: int, pad_id: int) -> Row:
    """The columns of a row.

    -100 is the label of pads and of each piece's first token, which nothing before it in the row can predict. But if a
    row begins inside a document, its first token keeps its label, which the shift then drops.
    """
    input_ids: list[int] = []
    labels: list[int] = []
    position_ids: list[int] = []
    doc_ids: list[int] = []
    subsets: list[str | None] = []
    for number, (document, begin, length) in enumerate(row):
        tokens = document.tokens[begin : begin + length]
        labels += [tokens[0] if begin > 0 and number == 0 else -100, *tokens[1:]]
        input_ids += tokens
        position_ids += range(length)
        doc_ids += [number] * length
        subsets += [document.line.subset] * length
    pads = seq_len - len(input_ids)
    return Row(
        tuple((piece.document.line.shard, piece.document.line.number) for piece in row),
        tuple(input_ids + [pad_id] * pads),
        tuple(labels + [-100] * pads),
        tuple(position_ids + [0] * pads),
        tuple(doc_ids + [-1] * pads),
        tuple(subsets + [None] * pads),
    )


def cu_seqlens(rows: Sequence[Row]) -> list[int]:
    """The places where rows, documents and paddings begin, and the end."""
    borders = []
    at = 0
    for row in rows:
        for place, number in enumerate(row.doc_ids):
            if place == 0 or number != row.doc_ids[place - 1]:
                borders.append(at)
            at += 1
    return [*borders, at]


def optimizer_steps(
    plan: Plan, documents: Callable[[int], Iterator[Document]], pad_id: int, steps: int
) -> list[list[Row]]:
    """The first optimizer steps: step t takes G / R rows from every lane of column t mod M, row after row of the grid.

    documents   the documents of lane l
    """
    return steps_of_lanes(plan, [lane_rows(documents(lane), plan) for lane in range(plan.lanes)], pad_id, steps)


def steps_of_lanes(plan: Plan, lanes: Sequence[Iterator[list[Piece]]], pad_id: int, steps: int) -> list[list[Row]]:
    """The first optimizer steps of these lanes."""
    each = plan.global_batch_size // plan.rows
    return [
        [
            columns(pieces, plan.seq_len, pad_id)
            for row in range(plan.rows)
            for pieces in islice(lanes[row * plan.columns + step % plan.columns], each)
        ]
        for step in range(steps)
    ]


def finite_pass(
    lines: Iterable[Line], plan: Plan, encode: Encoder, epochs: range, *, drop_last: bool = False
) -> list[list[Row]]:
    """The optimizer steps of a finite pass: the rows of the plan's only lane, padded or cut to whole steps."""
    assert plan.lanes == 1
    pieces = list(lane_rows(lane_documents(lines, plan, encode, 0, epochs), plan))
    if not drop_last:
        pieces += [[]] * (-len(pieces) % plan.global_batch_size)
    rows = [columns(row, plan.seq_len, encode.pad_id) for row in pieces]
    size = plan.global_batch_size
    return [rows[begin : begin + size] for begin in range(0, len(rows) - size + 1, size)]
