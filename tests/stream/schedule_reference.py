"""A plain reference of weights by step, written from the docstrings of draws.py and of the files in stream/pack.

It counts with fractions, one part of a document at a time, and takes a part's subset from the totals since the last
change of the shares. Only `mix` and `permutation` are pilekit's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, takewhile
from typing import Any

import xxhash

from pilekit.corpus.shuffle import mix, permutation
from tests.stream.conftest import Corpora
from tests.stream.reference import (
    DOCUMENTS,
    UNITS,
    Document,
    Encoder,
    Line,
    Piece,
    Plan,
    Row,
    is_used,
    lane_documents,
    pieces_of,
    selected,
    steps_of_lanes,
    units_and_slots,
    window_rows,
    windows,
)

WEIGHTS, SUBSETS, WAITS = 7, 8, 9
Entries = Sequence[tuple[int, Mapping[str, float]]]


@dataclass(frozen=True)
class Mixing:
    """A schedule by exact names; `earlier`, if given, holds for windows that begin before step `until`.

    Windows that begin before the first entry's step have one order of all documents.
    """

    entries: Entries
    ramp: int = 0
    until: int = 0
    earlier: Entries | None = None

    @property
    def names(self) -> list[str]:
        every = [*self.entries, *(self.earlier or ())]
        return sorted({name for _, weights in every for name in weights})

    def part(self, name: str) -> float:
        """The subset's part of the text of all units, by the schedule that first named it."""
        earlier, now = ({name for _, weights in of or () for name in weights} for of in (self.earlier, self.entries))
        entries, names = (self.earlier or (), earlier) if name in earlier else (self.entries, now)
        shares = {
            other: max(weights.get(other, 0) / sum(weights.values()) for _, weights in entries) for other in names
        }
        return math.sqrt(shares[name]) / sum(math.sqrt(shares[other]) for other in sorted(names))

    def of_window(self, step: int) -> Entries:
        return self.earlier if self.earlier is not None and step < self.until else self.entries

    def shares(self, entries: Entries, step: int) -> dict[str, Fraction]:
        """Walk through the entries up to the step."""
        now: dict[str, Fraction] = {}
        for place, (begin, weights) in enumerate(entries):
            if begin > step:
                break
            total = sum(weights.values())
            target = {name: Fraction(weights.get(name, 0) / total) for name in self.names}
            last = min(step, entries[place + 1][0] if place + 1 < len(entries) else step)
            done = Fraction(1) if not place or last - begin >= self.ramp else Fraction(last - begin, self.ramp)
            now = {name: now.get(name, target[name]) * (1 - done) + target[name] * done for name in target}
        return now

    def border(self, entries: Entries, step: int) -> int | None:
        """The next step at which a window ends."""
        borders = []
        for place, (begin, _) in enumerate(entries[1:], 1):
            end = begin + self.ramp
            if place + 1 < len(entries):
                end = min(end, entries[place + 1][0])
            borders += [begin, end]
        return min((at for at in borders if at > step), default=None)


def lengths_of(lines: Sequence[Line], plan: Plan, encode: Encoder) -> list[int]:
    """The lengths of the 128 documents with text that have the lowest hashes."""
    keyed = sorted((int(mix(WEIGHTS, plan.shards.index(line.shard), line.number)), line) for line in lines if line.text)
    return [len(encode(line.text)) for _, line in keyed[:128]]


def subset_documents(
    lines: Sequence[Line], name: str, plan: Plan, encode: Encoder, lane: int, part: float
) -> tuple[Iterator[Line], Fraction]:
    """(the lane's endless documents of a subset, and what it waits for the first)."""
    seed = int(mix(plan.seed, SUBSETS, xxhash.xxh3_64_intdigest(name.encode())))
    plan = replace(plan, subsets=None, repeats={})  # these are of the one order
    own = [line for line in selected(lines, plan) if line.subset == name]
    lengths = lengths_of(own, plan, encode)
    mean = sum(lengths) / len(lengths)
    unit = max(1, min(256, len(own) // (16 * plan.lanes), int(12 * 2**20 * part / max(1.0, 4 * mean))))
    units = [own[begin : begin + unit] for begin in range(0, len(own), unit)]
    spread = (int(permutation(plan.lanes, seed, WAITS)[lane]) + 0.5) / plan.lanes
    in_rows = [min(plan.seq_len, length - at) for length in lengths for at in range(0, length, plan.seq_len)]
    wait = Fraction(spread * (sum(length * length for length in in_rows) / sum(lengths)))

    needed = [math.ceil(max(plan.weights.get((line.shard, line.number), 1.0) for line in lines)) for lines in units]
    slots = [(copy, unit) for copy in range(max(needed)) for unit in range(len(units)) if copy < max(1, needed[unit])]

    def documents() -> Iterator[Line]:
        position = lane
        while True:
            epoch, place = divmod(position, len(slots))
            copy, number = slots[int(permutation(len(slots), seed, UNITS, epoch)[place])]
            for inside in permutation(len(units[number]), seed, DOCUMENTS, epoch, number, copy).tolist():
                line = units[number][inside]
                if is_used(replace(plan, seed=seed), epoch, copy, line) and (plan.keep is None or plan.keep(line)):
                    yield line
            position += plan.lanes

    return documents(), wait


def lane_rows(lines: Sequence[Line], plan: Plan, mixing: Mixing, encode: Encoder, lane: int) -> Iterator[list[Piece]]:
    """The rows of a lane."""
    row: list[Piece]
    each, column = plan.global_batch_size // plan.rows, lane % plan.columns
    sequences, waits = {}, {}
    for name in mixing.names:
        sequences[name], waits[name] = subset_documents(lines, name, plan, encode, lane, mixing.part(name))
    order = position = 0
    rest: dict[str, tuple[Line, int]] = {}  # the document that a subset is in, and its tokens that were drawn
    given: dict[str, int] = dict.fromkeys(mixing.names, 0)  # tokens since the shares changed
    shares: dict[str, Fraction] = {}

    def step_of(tokens: int) -> int:
        return tokens // plan.seq_len // each * plan.columns + column

    def settle() -> None:
        """Tokens by which each subset is ahead of its share."""
        nonlocal shares
        if shares:
            turns = {name: (waits[name] + given[name]) / share for name, share in shares.items() if share}
            for name, turn in turns.items():
                waits[name] = (turn - min(turns.values())) * shares[name]
        given.update(dict.fromkeys(given, 0))
        shares = {}

    def draw(entries: Entries, tokens: int, room: int) -> tuple[Piece, bool]:
        """(the next part, of `room` tokens at most, whether its document ends)"""
        nonlocal order, shares
        now = mixing.shares(entries, step_of(tokens))
        if now != shares:
            settle()
            shares = now
        turns = [((waits[name] + given[name]) / share, name) for name, share in shares.items() if share]
        name = min(turns)[1]
        line, begin = rest.pop(name, None) or (next(sequences[name]), 0)
        document = Document(lane, position, order, line, encode(line.text))
        length = min(room, len(document.tokens) - begin)
        if begin + length < len(document.tokens):
            rest[name] = line, begin + length
        given[name] += length
        order += 1
        return Piece(document, begin, length), name not in rest

    turn = 0
    if begin_at := mixing.entries[0][0]:
        units, slots = units_and_slots(lines, plan, lane)
        plain = lane_documents(lines, plan, encode, lane)
        left = lane * (len(units[0]) + 1)  # the place after the last document, as one number
        read: Document | None = None
        read_tokens = 0
        while step_of(turn * plan.seq_len) < begin_at:
            if plan.packing == "concat":
                row = []
                while room := plan.seq_len - sum(piece.length for piece in row):
                    if read is None or read_tokens == len(read.tokens):
                        read, read_tokens = next(plain), 0
                    length = min(room, len(read.tokens) - read_tokens)
                    row.append(Piece(read, read_tokens, length))
                    read_tokens += length
                rows = [row]
            else:
                documents = next(windows(plain, plan))
                read, read_tokens = documents[-1], len(documents[-1].tokens)
                rows = window_rows([pieces_of(document, plan.seq_len) for document in documents], plan, turn)
            yield from rows
            turn += len(rows)
        if read is not None:
            left = read.position * (len(units[0]) + 1) + read.order + 1
            named = {name for _, weights in mixing.of_window(step_of(turn * plan.seq_len)) for name in weights}
            if read_tokens < len(read.tokens) and read.line.subset in named:
                rest[read.line.subset] = read.line, read_tokens
        end = ((left // (len(units[0]) + 1)) // len(slots) + 1) * len(slots)
        rest_of_epoch = [document.line for document in takewhile(lambda document: document.position < end, plain)]
        for name in mixing.names:
            first = [line for line in rest_of_epoch if line.subset == name]
            sequences[name] = chain(first, sequences[name])
        position = left
    if plan.packing == "concat":
        filled = turn * plan.seq_len
        while True:
            row = []
            while room := plan.seq_len - sum(piece.length for piece in row):
                piece, _ = draw(mixing.entries, filled, room)
                row.append(piece)
                filled += piece.length
            yield row
    while True:
        begin = step_of(turn * plan.seq_len)
        entries = mixing.of_window(begin)
        border = mixing.border(entries, begin)
        first = next(row for row in range(turn, 1 << 60) if border is None or step_of(row * plan.seq_len) >= border)
        limit = None if border is None else first - turn
        window: list[Piece] = []
        filled = ended = 0  # tokens of rows, as if they were full; and documents that end
        while ended < plan.window and sum(piece.length for piece in window) < plan.most_tokens:
            if limit is not None and filled >= limit * plan.seq_len:
                break
            piece, ends = draw(entries, turn * plan.seq_len + filled, plan.seq_len)
            window.append(piece)
            ended += ends
            if plan.packing == "none":
                filled += plan.seq_len if len(piece.document.tokens) > 1 else 0
            else:
                filled += piece.length
        settle()
        rows = window_rows([[piece] for piece in window], plan, turn)
        yield from rows
        turn += len(rows)


def scheduled_steps(lines: Sequence[Line], plan: Plan, mixing: Mixing, encode: Encoder, steps: int) -> list[list[Row]]:
    """The first optimizer steps under a schedule."""
    lanes = [lane_rows(lines, plan, mixing, encode, lane) for lane in range(plan.lanes)]
    return steps_of_lanes(plan, lanes, encode.pad_id, steps)


def wanted_steps(corpora: Corpora, encode: Encoder, mixing: Mixing, steps: int, **changes: Any) -> list[list[Row]]:
    """The steps of the mixed corpus in this many steps, by a small plan with these changes."""
    plan = Plan(
        corpora["mixed"].shards,
        **{"rows": 8, "columns": 2, "global_batch_size": 16, "seq_len": 64, "window": 16, **changes},
    )
    return scheduled_steps(corpora["mixed"].lines, plan, mixing, encode, steps)
