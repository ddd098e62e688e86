"""Collectives between the devices of this machine: a team of processes, one a device, that measures on request."""

from __future__ import annotations

import multiprocessing
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..machine import optional_library
from ..timer import REPLAYS, OutOfTime
from .runner import KernelBench, Missing, Ready, case

PATIENCE = 120.0  # s until a team that does not answer is given up
START = 15.0  # s that processes take to load torch and to meet
IN_GRAPH = 20  # collectives in one captured graph
LIBRARY = {"cuda": "nccl", "cpu": "gloo"}


@case("all_reduce")
def all_reduce(b: KernelBench, *, dtype: str, bytes: int, ranks: int, library: str = "nccl") -> Ready:
    """The sum over all ranks of a tensor of ``bytes``, on each of them."""
    return _collective(b, "all_reduce", bytes, ranks, library)


@case("all_gather")
def all_gather(b: KernelBench, *, dtype: str, bytes: int, ranks: int, library: str = "nccl") -> Ready:
    """A tensor of ``bytes`` out of the ranks' shares, on each of them."""
    return _collective(b, "all_gather", bytes, ranks, library)


@case("reduce_scatter")
def reduce_scatter(b: KernelBench, *, dtype: str, bytes: int, ranks: int, library: str = "nccl") -> Ready:
    """The sum over all ranks of a tensor of ``bytes``, of which each keeps its share."""
    return _collective(b, "reduce_scatter", bytes, ranks, library)


@case("all_to_all")
def all_to_all(b: KernelBench, *, dtype: str, bytes: int, ranks: int, library: str = "nccl") -> Ready:
    """Each rank has a tensor of ``bytes`` and sends every other one an equal share of it."""
    return _collective(b, "all_to_all", bytes, ranks, library)


def _collective(b: KernelBench, kind: str, size: int, ranks: int, library: str) -> Ready:
    if library != LIBRARY[b.device]:
        raise Missing(f"collectives on {b.device} are by {LIBRARY[b.device]}, not {library}")
    if ranks < 2 or (b.gpu and b.torch.cuda.device_count() < ranks):
        raise Missing(f"there are not {ranks} devices here")
    if ranks not in b.teams:
        if time.monotonic() + START > b.deadline:
            raise OutOfTime
        b.teams[ranks] = Team(ranks, b.device)
    team: Team = b.teams[ranks]
    return Ready([], f"torch {library}", own=lambda: team.ask(kind, size))


class Team:
    """Processes that wait for a collective to measure: ``Team(2, "cpu").ask("all_reduce", 4096)  # seconds``"""

    def __init__(self, ranks: int, device: str) -> None:
        spawn = multiprocessing.get_context("spawn")  # a forked process may not use CUDA
        self.folder = Path(tempfile.mkdtemp(prefix="inferometer-"))
        self.members: list[tuple[Any, Any]] = []
        for rank in range(ranks):
            here, there = spawn.Pipe()
            member = spawn.Process(
                target=_member, args=(rank, ranks, device, self.folder.as_posix(), there), daemon=True
            )
            member.start()
            there.close()
            self.members.append((member, here))

    def ask(self, kind: str, size: int) -> float:
        """Seconds of the slowest rank; what went wrong on one is raised here."""
        if not self.members:
            raise Missing("the processes of the collectives have ended")
        try:
            for _, pipe in self.members:
                pipe.send((kind, size))
            answers = [self._answer(pipe) for _, pipe in self.members]
        except (EOFError, OSError, TimeoutError) as error:
            self.close()
            raise Missing(f"a process of the collectives gave up ({type(error).__name__})") from None
        wrong = [answer for answer in answers if isinstance(answer, str)]
        if wrong:
            raise Missing(wrong[0])
        return max(float(answer) for answer in answers)

    @staticmethod
    def _answer(pipe: Any) -> Any:
        if not pipe.poll(PATIENCE):
            raise TimeoutError
        return pipe.recv()

    def close(self) -> None:
        """End the processes: by a message first, then by a signal."""
        for _, pipe in self.members:
            try:
                pipe.send(None)
                pipe.close()
            except OSError:
                continue
        for member, _ in self.members:
            member.join(5.0)
            if member.is_alive():
                member.kill()
                member.join()
        self.members.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


# ------------------------------------------------------------------ in each process


def _member(rank: int, ranks: int, device: str, folder: str, pipe: Any) -> None:
    torch, distributed = optional_library("torch"), optional_library("torch.distributed")
    if device == "cuda":
        torch.cuda.set_device(rank)
    else:
        torch.set_num_threads(1)
    distributed.init_process_group(LIBRARY[device], init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    where = f"cuda:{rank}" if device == "cuda" else "cpu"
    while True:
        try:
            request = pipe.recv()
        except (EOFError, OSError):
            break
        if request is None:
            break
        try:
            pipe.send(_timed(torch, distributed, where, ranks, *request))
        except Exception as error:  # sent back as the answer; the process goes on
            pipe.send(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:160])
    distributed.destroy_process_group()


def _timed(torch: Any, distributed: Any, where: str, ranks: int, kind: str, size: int) -> float:
    """Check that the collective does what its name says, then time it."""
    rank = distributed.get_rank()
    numbers = max(size // 2 // ranks, 1) * ranks  # of bf16
    share = numbers // ranks
    whole = torch.empty(numbers, device=where, dtype=torch.bfloat16)
    part = torch.empty(share, device=where, dtype=torch.bfloat16)
    other = torch.empty_like(whole)
    run: Callable[[], Any] = {
        "all_reduce": lambda: distributed.all_reduce(whole),
        "all_gather": lambda: distributed.all_gather_into_tensor(whole, part),
        "reduce_scatter": lambda: distributed.reduce_scatter_tensor(part, whole),
        "all_to_all": lambda: distributed.all_to_all_single(other, whole),
    }[kind]
    shares = torch.arange(ranks, device=where).repeat_interleave(share).to(torch.bfloat16)
    whole.fill_(rank + 1)
    part.fill_(rank)
    if kind == "all_to_all":
        whole.copy_(shares)
    run()
    total = ranks * (ranks + 1) / 2
    right = {
        "all_reduce": (whole == total),
        "reduce_scatter": (part == total),
        "all_gather": (whole == shares),
        "all_to_all": (other == rank),
    }[kind]
    if not bool(right.all()):
        raise ArithmeticError(f"{kind} gave wrong numbers")
    whole.zero_()  # sums of sums would overflow
    return _device(torch, distributed, run) if where != "cpu" else _host(distributed, run)


def _host(distributed: Any, run: Callable[[], Any]) -> float:
    samples = []
    for _ in range(REPLAYS):
        distributed.barrier()
        began = time.perf_counter()
        run()
        samples.append(time.perf_counter() - began)
    return float(statistics.median(samples))


def _device(torch: Any, distributed: Any, run: Callable[[], Any]) -> float:
    """Replays of a graph of collectives, as an engine runs them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(IN_GRAPH):
            run()
    samples = []
    for number in range(REPLAYS + 1):
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        distributed.barrier()
        torch.cuda.synchronize()
        first.record()
        graph.replay()
        last.record()
        torch.cuda.synchronize()
        if number:  # the first warms up
            samples.append(first.elapsed_time(last) / 1e3 / IN_GRAPH)
    return float(statistics.median(samples))
