"""When every pipeline rank computes what: 1F1B, and 1F1B over virtual stages (Megatron-LM's interleaved schedule).

    schedule = run_schedule([[1.0], [1.0]], [[2.0], [2.0]], num_microbatches=8)
    schedule.seconds                              # 27.0: 8 × 3 and a bubble of (2 - 1) × 3
    schedule.passes[0][0]                         # Pass(microbatch=0, chunk=0, backward=False, start=0.0, end=1.0)

Rank k runs its passes in a fixed order: forward passes until the pipeline is full, then one forward and one backward in
turn, then the backward passes that are left. A pass begins when the rank is free and its input has come.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..base.units import ceil_div

MAX_PASSES = (
    4_000  # run one by one, whatever the number of rounds; longer schedules are estimated where they are steady
)
STEADY_ROUNDS = 4  # rounds of micro-batches, as many as ranks each, after which a further round takes equally long


class Pass(NamedTuple):
    """A micro-batch through one virtual stage of a rank."""

    microbatch: int
    chunk: int  # virtual stage of the rank
    backward: bool
    start: float
    end: float


class Schedule(NamedTuple):
    """The passes of every rank in order, and when the last of them ends."""

    passes: list[list[Pass]]
    seconds: float

    def idle(self, rank: int) -> float:
        """Seconds in which a rank waits: its share of the bubble."""
        return self.seconds - sum(one.end - one.start for one in self.passes[rank])


def pass_order(rank: int, ranks: int, chunks: int, num_microbatches: int) -> list[tuple[int, int, bool]]:
    """(micro-batch, virtual stage, backward) of a rank in turn: ``pass_order(0, 2, 1, 2)[:2]  # both forward``

    Over virtual stages ``ranks`` micro-batches at a time pass a stage before the rank turns to its next one.
    """
    total = num_microbatches * chunks
    forward = [(_microbatch(i, ranks, chunks), i // ranks % chunks, False) for i in range(total)]
    backward = [(_microbatch(i, ranks, chunks), chunks - 1 - i // ranks % chunks, True) for i in range(total)]
    if chunks == 1:
        forward = [(i, 0, False) for i in range(total)]
        backward = [(i, 0, True) for i in range(total)]
    warmup = ranks - rank - 1 if chunks == 1 else 2 * (ranks - rank - 1) + (chunks - 1) * ranks
    warmup = min(warmup, total)
    order = forward[:warmup]
    for one, other in zip(forward[warmup:], backward[: total - warmup], strict=True):
        order += (one, other)
    return order + backward[total - warmup :]


def _microbatch(i: int, ranks: int, chunks: int) -> int:
    return i // (ranks * chunks) * ranks + i % ranks


class PassTurn(NamedTuple):
    """A pass in the order in which inputs come, whatever the seconds: one list serves every estimate of a layout."""

    rank: int
    chunk: int
    microbatch: int
    backward: bool
    before: int  # index of the turn that computes its input; -1: none does
    hops: int  # 1 where the input comes from another rank


@lru_cache(maxsize=32)
def _turns(ranks: int, chunks: int, num_microbatches: int) -> list[PassTurn]:
    """Every pass after the one before it on its rank and after the one that computes its input."""
    last = ranks * chunks - 1
    orders = [pass_order(rank, ranks, chunks, num_microbatches) for rank in range(ranks)]
    index: dict[tuple[int, int, bool], int] = {}  # of (virtual stage of all, micro-batch, backward)
    turns: list[PassTurn] = []
    place, count = [0] * ranks, sum(map(len, orders))
    while len(turns) < count:  # each time, some rank's input has come
        for rank, order in enumerate(orders):
            while place[rank] < len(order):
                microbatch, chunk, backward = order[place[rank]]
                stage = chunk * ranks + rank
                turning = backward and stage == last  # from the last stage's forward pass, on the same rank
                before = stage if turning else stage + 1 if backward else stage - 1
                input_index = -1 if before < 0 else index.get((before, microbatch, backward and not turning))
                if input_index is None:
                    break
                index[stage, microbatch, backward] = len(turns)
                hops = int(before >= 0 and not turning)
                turns.append(PassTurn(rank, chunk, microbatch, backward, input_index, hops))
                place[rank] += 1
    return turns


def run_schedule(
    forward: Sequence[Sequence[float]],
    backward: Sequence[Sequence[float]],
    num_microbatches: int,
    send: float = 0.0,
) -> Schedule:
    """The schedule of ranks whose passes take ``forward[rank][chunk]`` and ``backward[rank][chunk]`` seconds.

    ``send``: seconds from the end of a pass to when its output has come to the next rank.
    """
    passes: list[list[Pass]] = [[] for _ in forward]
    turns, starts, ends = _run(forward, backward, num_microbatches, send)
    for turn, start, end in zip(turns, starts, ends, strict=True):
        passes[turn.rank].append(Pass(turn.microbatch, turn.chunk, turn.backward, start, end))
    return Schedule(passes, max(ends))


def _run(
    forward: Sequence[Sequence[float]], backward: Sequence[Sequence[float]], num_microbatches: int, send: float
) -> tuple[list[PassTurn], list[float], list[float]]:
    """Every pass, and when it begins and ends."""
    ranks, chunks = len(forward), len(forward[0])
    if chunks > 1:  # whole rounds: other numbers are refused, and what is shown beside that is of one more round
        num_microbatches = ceil_div(num_microbatches, ranks) * ranks
    turns = _turns(ranks, chunks, num_microbatches)
    seconds, delay, free = (forward, backward), (0.0, send), [0.0] * ranks
    starts: list[float] = []
    ends: list[float] = []
    for rank, chunk, _, is_backward, before, hops in turns:
        start = free[rank]
        if before >= 0:
            ready = ends[before] + delay[hops]
            if ready > start:
                start = ready
        end = free[rank] = start + seconds[is_backward][rank][chunk]
        starts.append(start)
        ends.append(end)
    return turns, starts, ends


def schedule_seconds(
    forward: Sequence[Sequence[float]],
    backward: Sequence[Sequence[float]],
    num_microbatches: int,
    send: float = 0.0,
) -> float:
    """Seconds of all passes; of a long schedule an estimate.

    Without virtual stages that is an upper bound, in which the slowest rank never waits once it has begun: within 1.3%
    for stages that differ by a fifth. With them it is a few rounds, and for each further one what the last one took.
    """
    ranks = len(forward)
    if ranks == 1:
        return num_microbatches * (sum(forward[0]) + sum(backward[0]))
    chunks = len(forward[0])
    if 2 * ranks * chunks * num_microbatches <= MAX_PASSES or num_microbatches <= STEADY_ROUNDS * ranks:
        return max(_run(forward, backward, num_microbatches, send)[2])
    if chunks == 1:
        totals = [sum(one) + sum(other) for one, other in zip(forward, backward, strict=True)]
        return (num_microbatches - 1) * max(totals) + sum(totals) + 2 * (ranks - 1) * send
    simulated = STEADY_ROUNDS * ranks + num_microbatches % ranks
    seconds = max(_run(forward, backward, simulated, send)[2])
    round_seconds = seconds - max(_run(forward, backward, simulated - ranks, send)[2])
    return seconds + (num_microbatches - simulated) // ranks * round_seconds
