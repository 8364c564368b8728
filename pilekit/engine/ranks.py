"""`Ranks`: which process of the job this one is, and what it tells the others between two steps.

`join` makes one process a rank, however it was started: by a program that has joined a process group already, by
torchrun or Slurm, which leave RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT in the environment, or by nobody, which is
a world of one. There is one `Ranks` for one default process group; whoever asks gets the same.

Numbers and messages between steps go over a process group of their own on the CPU, so that they never stand in line
behind the gradients of a GPU, and what the checkpoints' thread says over another: two threads that share one group
would mix up their messages, and gloo then ends the process.

If one rank fails, all ranks must hear of it, or they wait for ever. `on_rank0` and `on_all_ranks` end alike on every
rank: all ranks return a value, or all raise. A rank that dies closes its connections, and `lost_rank` gives the other
ranks one clear line. All ranks raise; only rank 0 prints. The others raise `ToldElsewhere`.

After a crash torchrun starts all ranks again beside the same store, in which the addresses of the dead ones still lie;
a rank that read those would wait for a process that is gone. So each attempt keeps its addresses under its own number.
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
from torch.distributed import HashStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from pilekit.errors import PilekitError, ToldElsewhere, visible

T = TypeVar("T")

TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others before it takes them for dead."""


@dataclass(frozen=True, eq=False)
class Ranks:
    """This process among all of the job.

    rank         its number, from 0
    world_size   how many there are
    local_rank   its number among those of this machine
    device       where it computes
    mesh         all ranks in one dimension, on the type of `device`
    control      CPU process group: numbers and messages between steps
    saving       CPU process group: of the thread that writes checkpoints, and of nothing else

    All ranks must call the same methods in the same order. Each raises PilekitError if a rank is gone.
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
        """Whether this is rank 0, which writes, prints and logs for all."""
        return self.rank == 0

    def sum(self, values: torch.Tensor) -> torch.Tensor:
        """`values` (CPU float64, 1-D) summed over ranks: a new tensor, the same on all to the bit."""
        total = values.clone()
        self._all_reduce(total, dist.ReduceOp.SUM)
        return total

    def any(self, flag: bool) -> bool:
        """Whether the flag is true on any rank."""
        return bool(self.all_max(int(flag)))

    def all_max(self, number: int) -> int:
        """The largest number of any rank."""
        largest = torch.tensor([number])
        self._all_reduce(largest, dist.ReduceOp.MAX)
        return int(largest.item())

    def gather(self, value: T) -> list[T]:
        """The value of every rank, by rank; anything that can be pickled."""
        if self.world_size == 1:
            return [value]
        values: list[T] = [value] * self.world_size
        with self._hearing():
            dist.all_gather_object(values, value, group=self.control)
        values[self.rank] = value
        return values

    def on_rank0(self, work: Callable[[], T]) -> T:
        """What `work` returns on rank 0, where alone it is called: a value that can be pickled.

        If it raises there, rank 0 raises that, and all others PilekitError: with the same message where it was one, and
        else with the name of the error.
        """
        if self.world_size == 1:
            return work()
        error: BaseException | None = None
        told: list[bytes | str | None] = [None]  # the pickled value, or what went wrong
        value: T | None = None
        if self.is_first:
            try:
                value = work()
                told = [pickle.dumps(value)]
            except BaseException as raised:  # whatever it was: the others must not wait for a value
                error, told = raised, [self._message(raised)]
        try:
            with self._hearing():
                dist.broadcast_object_list(told, src=0, group=self.control)
        finally:
            if error is not None:
                raise error
        if isinstance(told[0], str):
            raise ToldElsewhere(told[0])
        if self.is_first:
            return value  # type: ignore[return-value]
        received: T = pickle.loads(told[0])  # type: ignore[arg-type]
        return received

    def on_all_ranks(self, work: Callable[[], T]) -> T:
        """What `work` returns; it is called on every rank, and must not talk to the others.

        If it raises on any rank, all raise: PilekitError with the message of the lowest rank that did, or naming that
        rank and its error if it was another.
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
        if error is not None and not isinstance(error, PilekitError):
            raise error  # a bug keeps its traceback
        for message in messages:
            if message is not None:
                raise self.error(message) from error
        return value  # type: ignore[return-value]

    def error(self, message: str) -> PilekitError:
        """What all ranks raise at the same place; rank 0 tells it."""
        return (PilekitError if self.is_first else ToldElsewhere)(message)

    def _message(self, error: BaseException) -> str:
        if isinstance(error, PilekitError):
            return str(error)
        text = visible(str(error).partition("\n")[0], 300)
        return f"rank {self.rank} failed with {type(error).__name__}{text and f': {text}'}; its own messages say more"

    def _all_reduce(self, values: torch.Tensor, operation: dist.ReduceOp.RedOpType) -> None:
        if self.world_size > 1:
            with self._hearing():
                dist.all_reduce(values, operation, group=self.control)

    @contextmanager
    def _hearing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            lost = lost_rank(error, self)
            if lost is None:
                raise
            raise lost from error


def lost_rank(error: BaseException, ranks: Ranks) -> PilekitError | None:
    """The one line for an error of a collective operation whose other end is gone; None if it is another error."""
    if ranks.world_size == 1 or not isinstance(error, RuntimeError):
        return None
    if isinstance(error, dist.DistError) or any(sign in str(error) for sign in _SIGNS_OF_LOSS):
        return _lost(ranks.rank, error)
    return None


_SIGNS_OF_LOSS = ("gloo/", "Connection closed", "Connection reset", "Connection refused", "Broken pipe", "Timed out")
"""How gloo, whose errors have no type of their own, tells of a connection that has ended."""


def _lost(rank: int, error: BaseException) -> PilekitError:
    minutes = int(TIMEOUT.total_seconds()) // 60
    return ToldElsewhere(
        f"rank {rank}: another rank is gone, or has not answered for {minutes} minutes ({_line(error)}); look at the "
        "messages of the other ranks, and run the same command again to go on from what is saved"
    )


def _line(error: BaseException) -> str:
    """The first line of an error's text, without the place in torch's sources that gloo begins it with."""
    text = re.sub(r"^\[[^\]]*\]\s*", "", str(error).partition("\n")[0])
    return visible(text.partition(". This is typically caused")[0], 200)


_joined: tuple[dist.ProcessGroup, Ranks] | None = None
_made: dist.ProcessGroup | None = None  # the default process group, if it was made here


def join() -> Ranks:
    """This process among the ranks of its job; the same `Ranks` as long as the same default process group stands.

    Without a default process group, one is made of what torchrun's environment says, or of this process alone; it ends
    with the process. On a machine with GPUs a rank computes on that of its LOCAL_RANK. PilekitError if the environment
    is incomplete, there are more ranks than GPUs, or the others are not there.
    """
    global _joined
    atexit.unregister(_leave)  # once, however often it joins
    atexit.register(_leave)
    try:
        if not dist.is_initialized():
            _start()
        group = dist.group.WORLD
        assert group is not None
        if _joined is None or _joined[0] is not group:
            _joined = group, _ranks()
    except RuntimeError as error:
        if (_number("WORLD_SIZE") or 1) == 1 and not dist.is_initialized():
            raise  # there is nobody to be lost
        raise _lost(dist.get_rank() if dist.is_initialized() else _number("RANK") or 0, error) from error
    return _joined[1]


def _ranks() -> Ranks:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    local_rank = _number("LOCAL_RANK")
    if torch.cuda.is_available() and "nccl" in str(dist.get_backend_config()):
        if local_rank is None:
            local_rank = rank % torch.cuda.device_count()
        device = torch.device("cuda", local_rank)
        torch.cuda.set_device(device)
    else:
        device = torch.device("cpu")
    return Ranks(
        rank=rank,
        world_size=world_size,
        local_rank=rank if local_rank is None else local_rank,
        device=device,
        mesh=init_device_mesh(device.type, (world_size,)),
        control=_cpu_group(),
        saving=_cpu_group(),
    )


def _cpu_group() -> dist.ProcessGroup:
    group: dist.ProcessGroup = dist.new_group(backend="gloo", timeout=TIMEOUT)
    return group


def _start() -> None:
    """Make the default process group."""
    rank, world_size, local_rank = 0, _number("WORLD_SIZE") or 1, _number("LOCAL_RANK") or 0
    store: Store = HashStore()
    if world_size > 1 or os.environ.get("MASTER_ADDR"):
        rank, store = _meeting_place(world_size)
    backend = "gloo"
    if torch.cuda.is_available():
        gpus = torch.cuda.device_count()
        if local_rank >= gpus:
            raise PilekitError(
                f"rank {rank} is number {local_rank} (from 0) of a machine with {gpus} GPU{'s' * (gpus > 1)}; start at "
                f"most {gpus} there (--nproc-per-node {gpus}), or set CUDA_VISIBLE_DEVICES= to compute on the CPU"
            )
        backend = "cpu:gloo,cuda:nccl"  # both: parameters that are kept on the CPU are summed there
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=TIMEOUT)
    global _made
    _made = dist.group.WORLD


def _meeting_place(world_size: int) -> tuple[int, Store]:
    """(rank, the store where ranks find each other's addresses) as torchrun's environment has it."""
    missing = [f"${name}" for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if not os.environ.get(name)]
    if missing:
        raise PilekitError(
            f"$WORLD_SIZE is {world_size}, but {' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set; "
            "start the job with --nproc-per-node or with torchrun"
        )
    rank, host, port = _number("RANK") or 0, os.environ["MASTER_ADDR"], _number("MASTER_PORT") or 0
    if rank >= world_size:
        raise PilekitError(f"$RANK is {rank}, but $WORLD_SIZE is {world_size}; start the job with torchrun")
    hosted = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # by torchrun itself
    try:
        store = TCPStore(host, port, world_size, is_master=rank == 0 and not hosted, timeout=TIMEOUT, multi_tenant=True)
    except (RuntimeError, ValueError, TypeError) as error:
        raise PilekitError(
            f"rank {rank}: the ranks cannot meet at {visible(host, 100)}:{port}, which $MASTER_ADDR and $MASTER_PORT "
            f"name ({_line(error)}); give the address of rank 0's machine and a port that is free there"
        ) from error
    return rank, PrefixStore(f"attempt{_number('TORCHELASTIC_RESTART_COUNT') or 0}", store)


def _number(name: str) -> int | None:
    """A whole number of the environment; None if it is not set."""
    value = os.environ.get(name, "")
    if value and not (value.isascii() and value.isdecimal()):
        raise PilekitError(
            f"${name} is {visible(repr(value), 80)}, but it must be a whole number; start the job with torchrun"
        )
    return int(value) if value else None


def _leave() -> None:
    """At the end of the process: end the threads of the process groups while Python, whose objects they hold, is there.

    A thread that gives one back later would abort the process, long after all was done.
    """
    global _joined, _made
    joined, made, _joined, _made = _joined, _made, None, None
    groups = []
    if joined is not None:  # whoever still holds the Ranks must not hold these
        groups = [vars(joined[1]).pop(name) for name in ("control", "saving", "mesh")][:2]
    if not dist.is_initialized():
        return
    with suppress(Exception):  # the others may be gone already
        if dist.group.WORLD is made:
            dist.destroy_process_group()
        elif joined is not None and dist.group.WORLD is joined[0]:
            for group in groups:
                dist.destroy_process_group(group)
