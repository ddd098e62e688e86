"""A step over time: every pass of every pipeline stage, what it consists of, and the bytes on the GPU while it runs.

    timeline = step_timeline(training)
    timeline.stages[0].passes.start_s[0], timeline.stages[0].passes.memory_bytes[0]
    timeline.fold                                  # Fold(from_s=5.1, to_s=20.4, micro_batches=64), or None

A long schedule repeats itself: its steady part is shown once, and the fold says how much of it is left out.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from .iteration import PassSeconds, StageTime, StepEnd, pass_seconds, rank_chunks, stage_times, step_ends
from .schedule import STEADY_ROUNDS, Pass, run_schedule, schedule_seconds
from .training_memory import StageMemory, activation_peak, stage_activations, stage_memories
from .training_setup import Training

MAX_SHOWN = 16_384  # passes of a timeline; of more, only every so many stages are shown
FEWEST = 8  # micro-batches that are never folded
WORTH = 1.5  # times what would be shown: shorter schedules are shown whole


class TrainStage(msgspec.Struct):
    """A pipeline stage: what fills its GPU when it is fullest, and how long it waits."""

    stage: int  # its index
    layers: int  # of all its virtual stages
    weights_bytes: float  # under this ZeRO stage
    gradients_bytes: float  # of its weights, as they are accumulated
    optimizer_bytes: float  # master weights and moments
    activation_bytes: float  # kept of all micro-batches in flight
    working_bytes: float  # alive beside the activations at the peak
    buffers_bytes: float  # that the engine keeps allocated
    overhead_bytes: float  # of context, NCCL and workspaces
    total_bytes: float  # all of them
    in_flight: list[int]  # micro-batches of each virtual stage whose activations are kept at the peak
    microbatch_bytes: list[float]  # what each virtual stage keeps of one micro-batch
    busy_seconds: float  # in passes, with their communication
    idle_seconds: float  # until the last pass of all stages has ended: the bubble


class PassParts(msgspec.Struct):
    """Seconds of one pass; communication is what is not hidden."""

    compute: float  # kernels
    recompute: float  # forward operators that run again
    tp_comm: float  # tensor-parallel
    cp_comm: float  # context-parallel
    ep_comm: float  # expert all-to-all
    pp_comm: float  # sends to other stages
    dp_comm: float  # weights and gradients, where ZeRO moves them in every pass
    host: float  # waiting for the host: launches, and copies to its memory

    @property
    def total(self) -> float:
        """All of it."""
        return float(sum(msgspec.structs.astuple(self)))


class Passes(msgspec.Struct):
    """The passes of a stage in order, as columns."""

    microbatch: list[int]  # from 0
    chunk: list[int]  # virtual stage of the stage
    backward: list[bool]  # false: a forward pass
    start_s: list[float]  # since the step began
    end_s: list[float]  # since the step began
    memory_bytes: list[float]  # on the GPU while the pass runs


class StageTimeline(msgspec.Struct):
    """One pipeline stage over a step."""

    stage: int  # its index
    forward: list[PassParts]  # of a micro-batch, by virtual stage
    backward: list[PassParts]  # the same of its backward pass
    working_bytes: list[float]  # alive beside what is kept while a backward pass runs, by virtual stage
    passes: Passes  # in order, as columns
    reduce_gradients_s: float  # after the last pass, what is not hidden
    optimizer_s: float  # after the gradients
    gather_weights_s: float  # after the optimizer, what is not hidden


class Fold(msgspec.Struct):
    """The part of a long schedule that repeats what was shown before it."""

    from_s: float  # where it begins
    to_s: float  # where it ends
    micro_batches: int  # that are left out


class StepTimeline(msgspec.Struct):
    """A step: passes until ``passes_end_s``, then gradients, optimizer and weights."""

    step_seconds: float  # of all of it
    passes_end_s: float  # when the last pass of all stages ends
    micro_batches: int  # of a replica
    virtual_stages: int  # of every stage
    send_seconds: float  # from a pass to the next stage; without virtual stages it is part of the passes
    stages: list[StageTimeline]  # of very many, some
    fold: Fold | None = None  # null: the schedule is shown whole


def train_stages(
    training: Training, times: list[StageTime], memories: list[StageMemory], passes_end: float
) -> list[TrainStage]:
    """Memory and time of every pipeline stage, whose last pass ends at ``passes_end``."""
    stages = []
    for rank, (held, chunks) in enumerate(zip(memories, rank_chunks(training, times), strict=True)):
        busy = training.micro_batches * sum(time.total for time in chunks)
        indices = training.chunks(rank)
        in_flight = activation_peak(training, rank).in_flight
        kept = [stage_activations(training, index).kept for index in indices]
        layers = sum(
            block.count for i in indices for block in training.stages[i].model.blocks if block.stage == "layer"
        )
        idle = max(0.0, passes_end - busy)
        stages.append(TrainStage(rank, layers, *held, held.total, list(in_flight), kept, busy, idle))
    return stages


def step_timeline(training: Training) -> StepTimeline:
    """Every pass of a step, its steady part shown once: ``step_timeline(bind_training(request, recipe)).fold``"""
    times = stage_times(training)
    seconds, ends, memories = pass_seconds(training, times), step_ends(training, times), stage_memories(training)
    ranks, chunks, n = len(seconds.forward), len(seconds.forward[0]), seconds.num_microbatches
    simulated = _simulated(ranks, chunks, n)
    schedule = run_schedule(*seconds._replace(num_microbatches=simulated))
    total = schedule_seconds(*seconds)
    cut = _Cut(schedule.seconds / 2, total - schedule.seconds, n - simulated) if simulated < n else None
    shown = _shown_stages(ranks, chunks, simulated, memories, seconds)
    stages = [
        _stage(
            training, rank, rank_chunks(training, times)[rank], memories[rank], schedule.passes[rank], cut, ends[rank]
        )
        for rank in shown
    ]
    after = max(end.optimizer + end.dp_comm for end in ends) + training.bound_plan.engine.step_overhead
    return StepTimeline(
        step_seconds=total + after,
        passes_end_s=total,
        micro_batches=n,
        virtual_stages=chunks,
        send_seconds=seconds.send,
        stages=stages,
        fold=None if cut is None else Fold(cut.at, cut.at + cut.seconds, cut.micro_batches),
    )


class _Cut(NamedTuple):
    """Where a simulated schedule is cut, and how much of the same comes in between."""

    at: float
    seconds: float
    micro_batches: int


def _simulated(ranks: int, chunks: int, n: int) -> int:
    """Micro-batches that are simulated: all, or some rounds of them and what is left over."""
    steady = max(STEADY_ROUNDS * ranks, FEWEST)
    steady += (n - steady) % ranks if chunks > 1 else 0
    return n if n <= WORTH * steady else steady


def _shown_stages(
    ranks: int, chunks: int, simulated: int, memories: list[StageMemory], seconds: PassSeconds
) -> list[int]:
    """All stages; of too many passes every so many, and those that matter: first, last, fullest and slowest."""
    every = -(-2 * ranks * chunks * simulated // MAX_SHOWN)
    totals = [sum(one) + sum(other) for one, other in zip(seconds.forward, seconds.backward, strict=True)]
    fullest = max(range(ranks), key=lambda rank: memories[rank].total)
    return sorted({*range(0, ranks, every), ranks - 1, fullest, totals.index(max(totals))})


def _stage(
    training: Training,
    rank: int,
    chunks: list[StageTime],
    held: StageMemory,
    passes: list[Pass],
    cut: _Cut | None,
    end: StepEnd,
) -> StageTimeline:
    parts = [stage_activations(training, index) for index in training.chunks(rank)]
    now, columns = held.total - held.activations - held.working, Passes([], [], [], [], [], [])
    for one in passes:
        now += 0.0 if one.backward else parts[one.chunk].kept
        bytes_now = now + one.backward * parts[one.chunk].working
        for shift, micro_batches in _places(one, cut):
            _append(columns, one, shift, micro_batches, bytes_now)
        now -= parts[one.chunk].kept if one.backward else 0.0
    if cut is not None:
        _sort(columns)
    return StageTimeline(
        stage=rank,
        forward=[_forward_parts(time) for time in chunks],
        backward=[_backward_parts(time) for time in chunks],
        working_bytes=[part.working for part in parts],
        passes=columns,
        reduce_gradients_s=end.reduce,
        optimizer_s=end.optimizer,
        gather_weights_s=end.gather,
    )


def _places(one: Pass, cut: _Cut | None) -> list[tuple[float, int]]:
    """Where a pass is shown: seconds and micro-batches later; one across the cut, before it and behind it."""
    if cut is None:
        return [(0.0, 0)]
    places = [(0.0, 0)] if one.start < cut.at else []
    return places + ([(cut.seconds, cut.micro_batches)] if one.end > cut.at else [])


def _append(columns: Passes, one: Pass, shift: float, micro_batches: int, memory: float) -> None:
    columns.microbatch.append(one.microbatch + micro_batches)
    columns.chunk.append(one.chunk)
    columns.backward.append(one.backward)
    columns.start_s.append(one.start + shift)
    columns.end_s.append(one.end + shift)
    columns.memory_bytes.append(memory)


def _sort(columns: Passes) -> None:
    """By start: a pass across the cut was put behind it too early."""
    order = sorted(range(len(columns.start_s)), key=columns.start_s.__getitem__)
    for name in columns.__struct_fields__:
        column = getattr(columns, name)
        setattr(columns, name, [column[i] for i in order])


def _forward_parts(time: StageTime) -> PassParts:
    comm = time.forward_comm
    return PassParts(time.forward, 0.0, comm["tp"], comm["cp"], comm["ep"], 0.0, comm["dp"], time.forward_host)


def _backward_parts(time: StageTime) -> PassParts:
    comm = time.forward_comm
    return PassParts(
        compute=time.backward,
        recompute=time.recompute,
        tp_comm=time.tp_comm - comm["tp"],
        cp_comm=time.cp_comm - comm["cp"],
        ep_comm=time.ep_comm - comm["ep"],
        pp_comm=time.pp_comm,
        dp_comm=time.dp_comm - comm["dp"],
        host=time.host - time.forward_host,
    )
