"""The lane grid: which lanes a batch reads, and which process reads them.

There are R rows x M columns of lanes; lane = row x M + column. Step t (one optimizer step) takes q = G / R samples from
every lane of column t mod M, so the content of a step depends only on the grid and the lanes. The number of ranks,
micro-batches and workers only decides which process makes which part of a step:

    ranks          rank r of W owns the rows r, r + W, r + 2W, ...
    accumulation   with a micro-batches per step, micro-batch s of a rank reads part s of a of its rows
    workers        a rank counts its batches from the start of the run: b = t x a + s. The lanes of batch b depend only
                   on b modulo a x M. So if n divides a x M, the batches first + w, first + w + n, ... share no lane
                   with another worker's batches, and torch's DataLoader takes exactly these from worker w

So W x a must divide R. Under the sequential plan a lane is a list of whole shards, so there are few lanes. There W must
divide R and a must divide q, and each micro-batch takes q / a samples from every lane of the rank in the column. All
micro-batches of a step then share their lanes, so with a > 1 only one worker is active.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import msgspec
import numpy as np

from pilekit.corpus.shuffle import Int64
from pilekit.errors import PilekitError, counted
from pilekit.stream.settings import Samples

COLUMNS = 4
"""The default M. Without accumulation, this many workers can be active per rank."""

Plan = Literal["random", "sequential"]
Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True)
class Grid:
    """R `rows` x M `columns` of lanes, serving steps of `global_batch_size` samples; a part of the stream's state.

    finite  for finite passes: all ranks and workers read the same lane, and each keeps its own samples (finite_pass.py)
    """

    rows: Positive
    columns: Positive
    global_batch_size: Samples
    plan: Plan = "random"
    finite: bool = False

    def __post_init__(self) -> None:
        if self.global_batch_size % self.rows:
            raise PilekitError(
                f"{counted(self.rows, 'row')} of lanes cannot share a global batch size of {self.global_batch_size}; "
                f"valid numbers of rows are {_listed(divisors(self.global_batch_size))}"
            )

    @property
    def lanes(self) -> int:
        """R x M."""
        return self.rows * self.columns

    @property
    def per_visit(self) -> int:
        """q: samples that a step takes from each lane of its column."""
        return self.global_batch_size // self.rows

    def world_sizes(self) -> list[int]:
        """The numbers of ranks that can share this grid, increasing."""
        return divisors(self.global_batch_size if self.finite else self.rows)

    def accumulations(self, world_size: int) -> list[int]:
        """The possible numbers of micro-batches per step with this valid world size, increasing."""
        if self.finite:
            return divisors(self.global_batch_size // world_size)
        return divisors(self.per_visit if self.plan == "sequential" else self.rows // world_size)

    def share(self, rank: int, world_size: int, grad_accum: int) -> Share:
        """The part of one rank; PilekitError names the valid world sizes and accumulations."""
        if self.finite and self.global_batch_size % (world_size * grad_accum):
            raise PilekitError(
                f"{counted(world_size, 'rank')} x {_accumulated(grad_accum)} cannot share a global batch size of "
                f"{self.global_batch_size}; their product must be one of {_listed(divisors(self.global_batch_size))}"
            )
        if world_size not in self.world_sizes():
            raise PilekitError(
                f"{counted(world_size, 'rank')} cannot share {counted(self.rows, 'row')} of lanes; valid world sizes "
                f"are {_listed(self.world_sizes())}; other lanes give a new run another grid"
            )
        if grad_accum not in self.accumulations(world_size):
            sizes = [self.global_batch_size // (world_size * a) for a in self.accumulations(world_size)]
            raise PilekitError(
                f"{counted(world_size, 'rank')} x {_accumulated(grad_accum)} cannot share "
                f"{counted(self.rows, 'row')} of lanes; valid are {_listed(self.accumulations(world_size))}, which "
                f"are batch sizes {_listed(sizes)}; other lanes give a new run another grid"
            )
        return Share(self, rank, world_size, grad_accum)


@dataclass(frozen=True)
class Share:
    """The part of a grid that rank `rank` of `world_size` reads, in `grad_accum` batches per step."""

    grid: Grid
    rank: int
    world_size: int
    grad_accum: int

    @property
    def batch_size(self) -> int:
        """Samples in each of this rank's batches."""
        return self.grid.global_batch_size // (self.world_size * self.grad_accum)

    @property
    def per_lane(self) -> int:
        """Samples that a batch takes from each lane it reads."""
        return self.grid.per_visit // (self.grad_accum if self.grid.plan == "sequential" else 1)

    def rows(self) -> Int64:
        """The rows that this rank owns, int64 [R / W]."""
        return np.arange(self.rank, self.grid.rows, self.world_size, dtype=np.int64)

    def lanes(self) -> Int64:
        """All lanes of those rows, int64 [M x R / W], increasing."""
        return (self.rows()[:, None] * self.grid.columns + np.arange(self.grid.columns)).ravel()

    def read_by(self, batch: int) -> Int64:
        """The lanes that this rank's batch `batch` (counted from the start of the run) reads, int64 [k], increasing."""
        return self._by_turn[batch % len(self._by_turn)]

    @cached_property
    def _by_turn(self) -> list[Int64]:
        """The lanes of each batch of M steps; later batches read these again."""
        return [self._lanes_of(batch) for batch in range(self.grad_accum * self.grid.columns)]

    def _lanes_of(self, batch: int) -> Int64:
        step, part = divmod(batch, self.grad_accum)
        rows = self.rows()
        if self.grid.plan == "random":
            each = len(rows) // self.grad_accum
            rows = rows[part * each : (part + 1) * each]
        lanes: Int64 = rows * self.grid.columns + step % self.grid.columns
        lanes.flags.writeable = False  # every caller gets the same array
        return lanes

    def rows_before(self, batch: int) -> int:
        """The rows that each lane of this rank's batch `batch` has given before it."""
        step, part = divmod(batch, self.grad_accum)
        visits = step // self.grid.columns * self.grid.per_visit
        return visits + part * self.per_lane if self.grid.plan == "sequential" else visits

    def row_numbers(self, batch: int) -> Int64:
        """The number, among the rows of all ranks in a step, of each row of a batch, int64 [batch_size].

        The rows of a step are numbered in the order of the lanes. Those of a finite pass have no lanes of their own.
        """
        lanes, first = self.read_by(batch) // self.grid.columns, 0
        if self.grid.plan == "sequential":
            first = batch % self.grad_accum * self.per_lane
        numbers: Int64 = (lanes[:, None] * self.grid.per_visit + first + np.arange(self.per_lane)).ravel()
        return numbers

    def workers(self, most: int) -> int:
        """How many of `most` DataLoader workers are active: the largest number that share no lane; 0 of 0."""
        if self.grid.finite:
            return most
        if self.grid.plan == "sequential" and self.grad_accum > 1:
            return min(most, 1)
        return max((count for count in divisors(self.grad_accum * self.grid.columns) if count <= most), default=0)

    def worker_counts(self) -> list[int]:
        """The numbers of workers that can all be active, increasing; an empty list: any number."""
        if self.grid.finite:
            return []
        return [n for n in range(1, self.grad_accum * self.grid.columns + 1) if self.workers(n) == n]


def default_rows(global_batch_size: int, world_size: int, grad_accum: int = 1) -> int:
    """The default R: the largest divisor of the global batch up to max(32, 4 x W), of those that W x a divides."""
    # Not more unless W x a is, because each lane costs memory, and time at a resume.
    parts = world_size * grad_accum
    most = max(32, 4 * world_size, parts)
    return max(rows for rows in divisors(global_batch_size) if rows <= most and rows % parts == 0)


def batch_sizes(
    world_size: int, batch_size: int | None, grad_accum: int | None, global_batch_size: int | None
) -> tuple[int, int]:
    """(global_batch_size, grad_accum) from the sizes given; global_batch_size = batch_size x grad_accum x world size.

    Without global_batch_size, batch_size is 8 and grad_accum 1 by default. With it and one of the two, the other
    follows. With it alone, grad_accum is 1. PilekitError if no whole number follows.
    """
    if global_batch_size is None:
        accumulation = grad_accum or 1
        return (batch_size or 8) * accumulation * world_size, accumulation
    if global_batch_size % world_size:
        raise PilekitError(
            f"a global batch size of {global_batch_size} cannot be divided among {world_size} ranks; valid world "
            f"sizes are among {_listed(divisors(global_batch_size))}"
        )
    per_rank = global_batch_size // world_size
    if grad_accum is None:
        grad_accum = 1 if batch_size is None else max(1, per_rank // batch_size)
    if per_rank % grad_accum or batch_size not in (None, per_rank // grad_accum):
        size_text = "" if batch_size is None else f"a batch size of {batch_size} x "
        raise PilekitError(
            f"a global batch size of {global_batch_size} is {counted(per_rank, 'sample')} for each of "
            f"{counted(world_size, 'rank')}, and {size_text}{_accumulated(grad_accum)} cannot make that; the batch "
            f"size must be one of {_listed(divisors(per_rank))}"
        )
    return global_batch_size, grad_accum


def divisors(n: int) -> list[int]:
    """The divisors of n >= 1, increasing."""
    numbers = set[int]()
    for small in range(1, int(n**0.5) + 1):
        if n % small == 0:
            numbers |= {small, n // small}
    return sorted(numbers)


def _accumulated(grad_accum: int) -> str:
    return f"{counted(grad_accum, 'micro-batch', 'micro-batches')} a step (grad_accum)"


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:30])) + (", …" if len(numbers) > 30 else "")
