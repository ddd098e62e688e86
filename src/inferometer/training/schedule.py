"""When every pipeline rank computes what: 1F1B, and 1F1B over virtual stages (Megatron-LM's interleaved schedule).

    schedule = run_schedule([[1.0], [1.0]], [[2.0], [2.0]], num_microbatches=8)
    schedule.seconds                              # 27.0: 8 × 3 and a bubble of (2 - 1) × 3
    schedule.passes[0][0]                         # Pass(microbatch=0, chunk=0, backward=False, start=0.0, end=1.0)

Rank k runs its passes in a fixed order: forward passes until the pipeline is full, then one forward and one backward in
turn, then the backward passes that are left. A pass begins when the rank is free and its input has come.
"""

from __future__ import annotations

from collections.abc import Sequence
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


def run_schedule(
    forward: Sequence[Sequence[float]],
    backward: Sequence[Sequence[float]],
    num_microbatches: int,
    send: float = 0.0,
) -> Schedule:
    """The schedule of ranks whose passes take ``forward[rank][chunk]`` and ``backward[rank][chunk]`` seconds.

    ``send``: seconds from the end of a pass to when its output has come to the next rank.
    """
    ranks, chunks = len(forward), len(forward[0])
    if chunks > 1:  # whole rounds: other numbers are refused, and what is shown beside that is of one more round
        num_microbatches = ceil_div(num_microbatches, ranks) * ranks
    last = ranks * chunks - 1
    orders = [pass_order(rank, ranks, chunks, num_microbatches) for rank in range(ranks)]
    done: dict[tuple[int, int, bool], float] = {}  # (virtual stage of all, micro-batch, backward) -> its end
    passes: list[list[Pass]] = [[] for _ in range(ranks)]
    free, place = [0.0] * ranks, [0] * ranks
    while any(place[rank] < len(orders[rank]) for rank in range(ranks)):  # each turn, some rank's input has come
        for rank in range(ranks):
            while place[rank] < len(orders[rank]):
                microbatch, chunk, is_backward = orders[rank][place[rank]]
                stage = chunk * ranks + rank
                ready = _ready(done, stage, microbatch, is_backward, last, send)
                if ready is None:
                    break
                start = max(free[rank], ready)
                end = start + (backward if is_backward else forward)[rank][chunk]
                done[stage, microbatch, is_backward] = free[rank] = end
                passes[rank].append(Pass(microbatch, chunk, is_backward, start, end))
                place[rank] += 1
    return Schedule(passes, max(free))


def _ready(
    done: dict[tuple[int, int, bool], float], stage: int, microbatch: int, is_backward: bool, last: int, send: float
) -> float | None:
    """When the input of a pass has come; None if it is not computed yet."""
    if is_backward and stage == last:
        return done.get((stage, microbatch, False))
    before = stage + 1 if is_backward else stage - 1
    if before < 0:
        return 0.0
    end = done.get((before, microbatch, is_backward))
    return None if end is None else end + send


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
        return run_schedule(forward, backward, num_microbatches, send).seconds
    if chunks == 1:
        totals = [sum(one) + sum(other) for one, other in zip(forward, backward, strict=True)]
        return (num_microbatches - 1) * max(totals) + sum(totals) + 2 * (ranks - 1) * send
    simulated = STEADY_ROUNDS * ranks + num_microbatches % ranks
    seconds = run_schedule(forward, backward, simulated, send).seconds
    round_seconds = seconds - run_schedule(forward, backward, simulated - ranks, send).seconds
    return seconds + (num_microbatches - simulated) // ranks * round_seconds
