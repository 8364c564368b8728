"""`Ranks`: this process's place among the processes of a job, and how they exchange values between two steps.

`join` makes a process a rank. It uses the process group that the program has made already, or the environment that
torchrun and Slurm set (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT), or else makes a group of one. All callers share one
`Ranks` per default process group.

Numbers and messages of the CPU travel over a process group of their own, so they never queue behind a GPU's gradients.
Numbers that a GPU has made travel as its gradients do, so the CPU does not wait for them. The checkpoint thread has
another CPU group: if two threads share a group, their messages mix and gloo aborts.

If one rank fails, all ranks must hear of it, or the others wait forever. `on_rank0` and `on_all_ranks` end the same way
on every rank: all ranks return a value, or all raise. Rank 0 prints the error; the others raise `AlreadyReported`. A
rank that dies closes its connections, and `lost_rank` turns the errors that the others then see into one clear line.

After a crash, torchrun restarts all ranks with the same store, which still holds the addresses of the dead processes.
A rank that reads these waits for a process that is gone, so each attempt stores its addresses under its own prefix.
"""

from __future__ import annotations

import atexit
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
from torch import distributed as dist
from torch.distributed import HashStore, PrefixStore, Store  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.rendezvous import rendezvous

from pilekit.errors import AlreadyReported, PilekitError, RankLost, counted, shortened

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
"""The time a rank waits for the others before it considers them dead."""

_SIGNS_OF_LOSS = ("gloo/", "Connection closed", "Connection reset", "Connection refused", "Broken pipe", "Timed out")
"""Gloo's errors for a closed connection; they have no type of their own."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among all processes of the job.

    rank         number of this process, from 0
    world_size   number of processes
    local_rank   number of this process on its machine
    device       where it computes
    mesh         all ranks in one dimension, on the type of `device`
    control      CPU process group for numbers and messages of the CPU
    saving       CPU process group for the checkpoint thread alone

    All ranks must call the same methods in the same order. Each method raises PilekitError if a rank is gone.
    """

    rank: int
    world_size: int
    local_rank: int
    device: torch.device
    mesh: DeviceMesh
    control: dist.ProcessGroup
    saving: dist.ProcessGroup

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0, which writes, prints and logs for all ranks."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """The sum of `values` (float64, 1-D) over ranks: a new tensor, bit for bit equal on all ranks.

        It is where `values` are. On a GPU nothing waits for it.
        """
        return self._all_reduce(values.clone(), dist.ReduceOp.SUM)

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        return bool(self.all_max(int(flag)))

    def all_max(self, number: int) -> int:
        """The largest number of any rank."""
        return int(self._all_reduce(torch.tensor([number]), dist.ReduceOp.MAX).item())

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in the order of ranks. Values must be picklable."""
        if self.world_size == 1:
            return [value]
        values: list[T] = [value] * self.world_size
        with self._naming_lost_ranks():
            dist.all_gather_object(values, value, group=self.control)
        values[self.rank] = value
        return values

    def on_rank0(self, work: Callable[[], T]) -> T:
        """Call `work` on rank 0 alone and return its result, which must be picklable, on all ranks.

        If `work` raises, rank 0 raises that error. The others raise a PilekitError with its message.
        """
        if self.world_size == 1:
            return work()

        def answer() -> tuple[T, bytes] | None:
            if not self.is_first:
                return None
            value = work()
            return value, pickle.dumps(value)

        value_and_bytes = self.on_all_ranks(answer)
        sent = [value_and_bytes and value_and_bytes[1]]
        with self._naming_lost_ranks():
            dist.broadcast_object_list(sent, src=0, group=self.control)
        value: T = value_and_bytes[0] if value_and_bytes else pickle.loads(sent[0])  # type: ignore[arg-type]
        return value

    def on_all_ranks(self, work: Callable[[], T]) -> T:
        """Call `work` on every rank and return this rank's result; `work` must not communicate.

        If `work` raises on any rank, all ranks raise a PilekitError with the message of the lowest rank that failed.
        """
        if self.world_size == 1:
            return work()
        value: T | None = None
        error: BaseException | None = None
        try:
            value = work()
        except BaseException as raised:
            error = raised
        try:
            messages = self.gather(None if error is None else self._message(error))
        except PilekitError as lost:
            raise error or lost from lost
        if error is not None and (self.is_first or not isinstance(error, PilekitError)):
            raise error  # a bug keeps its traceback
        for message in messages:
            if message is not None:
                raise self.error(message) from error
        return value  # type: ignore[return-value]

    def error(self, message: str) -> PilekitError:
        """An error that all ranks raise at the same place; only rank 0 prints it."""
        return (PilekitError if self.is_first else AlreadyReported)(message)

    def _message(self, error: BaseException) -> str:
        if isinstance(error, PilekitError):
            return str(error)
        text = shortened(str(error).partition("\n")[0], 300)
        return f"rank {self.rank} failed with {type(error).__name__}{text and f': {text}'}; its own messages say more"

    def _all_reduce(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> torch.Tensor:
        if self.world_size > 1:
            group = self.control if values.device.type == "cpu" else self.mesh.get_group()
            with self._naming_lost_ranks():
                dist.all_reduce(values, operation, group=group)
        return values

    @contextmanager
    def _naming_lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            if lost := lost_rank(error, self):
                raise lost from error
            raise


def lost_rank(error: BaseException, ranks: Ranks) -> PilekitError | None:
    """The message to raise if a collective failed because another rank is gone; None for any other error."""
    if ranks.world_size == 1 or not isinstance(error, RuntimeError):
        return None
    if isinstance(error, dist.DistError) or any(sign in str(error) for sign in _SIGNS_OF_LOSS):
        return _lost(ranks.rank, error)
    return None


def _lost(rank: int, error: BaseException) -> PilekitError:
    minutes = int(TIMEOUT.total_seconds()) // 60
    is_silent = "imed out" in str(error)  # such a rank may still live, and nobody else reports it
    return (AlreadyReported if is_silent else RankLost)(
        f"rank {rank}: another rank is gone, or has not answered for {minutes} minutes ({_first_line(error)}); look at "
        "the messages of the other ranks, and run the same command again to resume from the newest checkpoint"
    )


def _first_line(error: BaseException) -> str:
    """The first line of an error's text, without the location in torch's sources that gloo puts first."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error).partition("\n")[0])
    return shortened(text.partition(". This is typically caused")[0], 200)


_joined: Ranks | None = None
_world: dist.ProcessGroup | None = None  # the default process group to which `_joined` belongs
_is_own_world = False  # whether `join` made that group


def join() -> Ranks:
    """Return this process's `Ranks`: the same object as long as the default process group is the same.

    Without a default process group, `join` makes one from torchrun's environment, or one of this process alone; it is
    destroyed when the process exits. On a machine with GPUs, a rank computes on GPU number LOCAL_RANK. Raises
    PilekitError if the environment is incomplete, if there are more ranks than GPUs, or if the other ranks do not come.
    """
    global _joined, _world, _is_own_world
    atexit.unregister(_leave)  # register it once, however often this is called
    atexit.register(_leave)
    try:
        if is_new := not dist.is_initialized():
            _init_process_group()
        if is_new or dist.group.WORLD is not _world:
            _world, _is_own_world, _joined = dist.group.WORLD, is_new, None
        if _joined is None:
            _joined = _place_in_world()
    except RuntimeError as error:
        if (_integer("WORLD_SIZE") or 1) == 1 and not dist.is_initialized():
            raise  # there is no other rank to lose
        raise _lost(dist.get_rank() if dist.is_initialized() else _integer("RANK") or 0, error) from error
    return _joined


def _place_in_world() -> Ranks:
    rank, world_size, local_rank = dist.get_rank(), dist.get_world_size(), _integer("LOCAL_RANK")
    device = torch.device("cpu")
    if torch.cuda.is_available() and "nccl" in str(dist.get_backend_config()):
        local_rank = rank % torch.cuda.device_count() if local_rank is None else local_rank
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    return Ranks(
        rank=rank,
        world_size=world_size,
        local_rank=rank if local_rank is None else local_rank,
        device=device,
        mesh=init_device_mesh(device.type, (world_size,)),
        control=dist.new_group(backend="gloo", timeout=TIMEOUT),
        saving=dist.new_group(backend="gloo", timeout=TIMEOUT),
    )


def _init_process_group() -> None:
    world_size, local_rank = _integer("WORLD_SIZE") or 1, _integer("LOCAL_RANK") or 0
    backend = "gloo"
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if local_rank >= gpus:
            raise PilekitError(
                f"this rank is number {local_rank} (from 0) of a machine with {counted(gpus, 'GPU')}; start at "
                f"most {gpus} there (--nproc-per-node {gpus}), or set CUDA_VISIBLE_DEVICES= to compute on the CPU"
            )
        backend = "cpu:gloo,cuda:nccl"  # both, because offloaded parameters are reduced on the CPU
    rank = 0
    store: Store = HashStore()
    if world_size > 1 or os.environ.get("MASTER_ADDR"):
        try:
            store, rank, world_size = next(rendezvous("env://", timeout=TIMEOUT))
        except (ValueError, RuntimeError) as error:
            raise PilekitError(
                f"cannot join the other ranks ({_first_line(error)}); start the job with --nproc-per-node or torchrun, "
                "with the address of rank 0's machine and a port that is free there"
            ) from error
        store = PrefixStore(f"attempt{_integer('TORCHELASTIC_RESTART_COUNT') or 0}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)


def _integer(name: str) -> int | None:
    """An integer from the environment; None if it is not set."""
    value = os.environ.get(name, "")
    if value and not (value.isascii() and value.isdecimal()):
        raise PilekitError(
            f"${name} is {shortened(repr(value), 80)}, but it must be a whole number; start the job with torchrun"
        )
    return int(value) if value else None


def _leave() -> None:
    """At exit: destroy our process groups while Python still runs, because their threads hold Python objects.

    If such a thread releases an object after Python is gone, the process aborts although its work is done.
    """
    global _joined, _world
    joined, world, _joined, _world = _joined, _world, None, None
    groups: list[dist.ProcessGroup | None] = [None]  # None stands for all groups
    if joined is not None:  # a Trainer may still hold this Ranks, which must not keep the groups alive
        groups_of_ranks = [vars(joined).pop(name) for name in ("control", "saving", "mesh")]
        groups = groups if _is_own_world else groups_of_ranks[:2]
    if dist.is_initialized() and dist.group.WORLD is world:
        with suppress(Exception):  # the other ranks may be gone
            for group in groups:
                dist.destroy_process_group(group)
