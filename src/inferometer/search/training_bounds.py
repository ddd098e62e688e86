"""Lower bounds of a training layout's step time and memory: sums over blocks that many layouts have in common.

bounds = TrainingBounds(problem)
bounds.step_seconds(layout), bounds.memory(layout)       # never more than what `train` says of that layout

A stage takes at most the sum of what its blocks take alone: together they hide more communication, each part of a
model no more of it than the whole. So what the whole model saves, taken off every rank's sum, is a bound. Memory is
that of every rank at one moment of its schedule, without what is small.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import msgspec

from ..network.graph import Block
from ..training.iteration import EndCosts, end_costs, stage_times
from ..training.passes import Recipe, stage_passes
from ..training.schedule import pass_order
from ..training.training_memory import rank_states, stage_activations
from ..training.training_setup import ParameterCounts, Training, parameter_counts, stage_layer_counts
from .training_space import Recomputation, TrainingLayout, TrainingProblem

CostKey = tuple[Any, ...]
Counts = tuple[int, ...]  # of every kind of block
ROUNDING = 1 - 1e-9  # sums in another order differ in the last digits


class Moment(NamedTuple):
    """When a rank keeps most micro-batches: how many on each virtual stage, and the one whose backward pass begins."""

    in_flight: Counts
    backward: int


@cache
def fullest_moment(rank: int, ranks: int, chunks: int, num_microbatches: int) -> Moment:
    """``fullest_moment(0, 4, 1, 32)  # Moment(in_flight=(4,), backward=0)``"""
    now, best = [0] * chunks, Moment((0,) * chunks, 0)
    for _, chunk, is_backward in pass_order(rank, ranks, chunks, num_microbatches):
        if is_backward:
            if sum(now) > sum(best.in_flight):
                best = Moment(tuple(now), chunk)
            now[chunk] -= 1
        else:
            now[chunk] += 1
    return best


class RankBlocks(NamedTuple):
    """A kind of pipeline rank: how many blocks of each kind it has, and what comes before the last such rank."""

    rank: int  # the first one of its kind, which keeps most micro-batches
    chunks: tuple[Counts, ...]  # of its virtual stages
    counts: Counts  # of all of them
    before: Counts  # of the stages through which the pipeline fills


class KeptBlocks(NamedTuple):
    """Blocks of each kind of which a rank keeps what the backward pass needs, and one of which that begins with."""

    counts: Counts
    first: tuple[int, ...]


class BlockTimes(NamedTuple):
    """Seconds of a micro-batch: of one block of each kind alone, and what all blocks together save."""

    alone: tuple[float, ...]
    forward: tuple[float, ...]  # beside which weights are gathered
    backward: tuple[float, ...]  # beside which gradients are reduced
    saved: float


class KeptBytes(NamedTuple):
    """Bytes of a micro-batch in one block of each kind: kept for the backward pass, and beside that."""

    kept: tuple[float, ...]
    working: tuple[float, ...]


def dot(counts: Counts, values: Sequence[float]) -> float:
    """``dot((1, 80, 0), (0.1, 0.5, 0.3))  # 40.1``"""
    return sum(count * value for count, value in zip(counts, values, strict=True) if count)


def added(*several: Counts) -> Counts:
    """``added((1, 20, 0), (0, 20, 1))  # (1, 40, 1)``"""
    return tuple(map(sum, zip(*several, strict=True)))


class TrainingBounds:
    """Bounds of all layouts of a problem; what layouts have in common is worked out when it is first needed."""

    def __init__(self, problem: TrainingProblem) -> None:
        self.problem = problem
        self.costs: dict[CostKey, dict[int, Any]] = {}  # of micro-batches, for every layout of a key
        self.blocks = [b for b in problem.request.model.blocks if b.stage in ("embed", "layer", "head")]
        self._bound: dict[Any, Training] = {}
        self._times: dict[Any, BlockTimes] = {}
        self._bytes: dict[Any, KeptBytes] = {}
        self._parameters: dict[Any, list[ParameterCounts]] = {}
        self._ranks: dict[Any, list[RankBlocks]] = {}
        self._kept: dict[Any, list[KeptBlocks]] = {}
        self._states: dict[Any, list[float]] = {}
        self._ends: dict[Any, EndCosts] = {}
        recipe = problem.recipe
        self._keeps_all = not (
            (recipe.recompute_method == "uniform" and (recipe.recompute_num_layers or 1) > 1)
            or recipe.cpu_offloading_num_layers
        )  # of every block what it keeps alone
        self._some_layers = recipe.recompute_method == "block" and recipe.recompute_num_layers is not None

    # -------------------------------------------------------------- what layouts have in common

    def cost_key(self, layout: TrainingLayout) -> CostKey:
        """Layouts of a key share the costs of a micro-batch."""
        return (layout.tp, layout.sp, layout.cp, layout.ep, layout.etp, layout.micro_batch_size)

    def shared_costs(self, layout: TrainingLayout) -> dict[int, Any]:
        """What `Training.costs` is for a layout."""
        return self.costs.setdefault(self.cost_key(layout), {})

    def _whole(self, layout: TrainingLayout, recomputation: Recomputation, zero: int) -> Training:
        """The whole model as one stage under the layout's other axes."""
        key = (self.cost_key(layout), layout.dp if zero > 1 else 0)
        if key not in self._bound:
            dp = layout.dp if zero > 1 else self.problem.num_gpus // (layout.tp * layout.cp)
            one = layout._replace(pp=1, virtual_stages=1, dp=dp, recomputation=Recomputation("none"), zero=zero)
            self._bound[key] = self.problem.training(one)._replace(costs=self.shared_costs(layout))
        recipe = self.problem.recipe_of(layout._replace(virtual_stages=1, recomputation=recomputation, zero=zero))
        recipe = msgspec.structs.replace(recipe, cpu_offloading_num_layers=0)  # copies only add time
        return self._with_blocks(self._bound[key], recipe, None)

    def _with_blocks(self, training: Training, recipe: Recipe, block: Block | None) -> Training:
        """One block as a stage, or all of them."""
        model, plan = self.problem.request.model, training.bound_plan.plan
        if block is not None:
            one = msgspec.structs.replace(block, layers=block.layers[:1])
            model = msgspec.structs.replace(model, blocks=(one,), num_layers=len(one.layers))
        passes = stage_passes(
            model,
            recipe,
            sequence_parallel=plan.sequence_parallel,
            eager=plan.attention == "eager",
            context_parallel=training.layout.cp > 1,
        )
        return training._replace(recipe=recipe, stages=(training.bound_plan._replace(model=model),), passes=(passes,))

    def _alone(self, whole: Training) -> list[Training]:
        """One block of every kind as a stage."""
        return [self._with_blocks(whole, whole.recipe, block) for block in self.blocks]

    def block_times(self, layout: TrainingLayout, recomputation: Recomputation, zero: int) -> BlockTimes:
        """Seconds of every kind of block, whatever the pipeline."""
        key = (self.cost_key(layout), recomputation, zero, layout.dp if zero > 1 else 0)
        if key not in self._times:
            whole = self._whole(layout, recomputation, zero)
            times = [stage_times(one)[0] for one in self._alone(whole)]
            apart = sum(time.total * block.count for time, block in zip(times, self.blocks, strict=True))
            self._times[key] = BlockTimes(
                alone=tuple(time.total for time in times),
                forward=tuple(time.forward + time.forward_host for time in times),
                backward=tuple(time.backward + time.recompute + time.host for time in times),
                saved=max(0.0, apart - stage_times(whole)[0].total),
            )
        return self._times[key]

    def _block_bytes(self, layout: TrainingLayout) -> KeptBytes:
        key = (self.cost_key(layout), layout.recomputation)
        if key not in self._bytes:
            whole = self._whole(layout, layout.recomputation, min(layout.zero, 1))
            activations = [stage_activations(one, 0) for one in self._alone(whole)]
            kept = tuple(one.kept if self._keeps_all else 0.0 for one in activations)
            self._bytes[key] = KeptBytes(kept, tuple(one.working for one in activations))
        return self._bytes[key]

    def _block_parameters(self, layout: TrainingLayout) -> list[ParameterCounts]:
        key = (layout.tp, layout.ep, layout.etp)
        if key not in self._parameters:
            whole = self._whole(layout, Recomputation("none"), min(layout.zero, 1))
            self._parameters[key] = [parameter_counts(one, 0) for one in self._alone(whole)]
        return self._parameters[key]

    def _virtual_stages(self, layout: TrainingLayout) -> list[Counts]:
        """How many blocks of each kind every virtual stage has, in the order of the model."""
        counts = stage_layer_counts(self.problem.request_of(layout), self.problem.recipe_of(layout))
        stages, start, last = [], 0, len(counts) - 1
        for index, count in enumerate(counts):
            ends = {"embed": int(index == 0), "head": int(index == last)}
            inside = range(start, start + count)
            stages.append(tuple(ends.get(b.stage, sum(i in inside for i in b.layers)) for b in self.blocks))
            start += count
        return stages

    def _rank_blocks(self, layout: TrainingLayout) -> list[RankBlocks]:
        """Every kind of rank once."""
        key = (layout.pp, layout.virtual_stages)
        if key not in self._ranks:
            stages = self._virtual_stages(layout)
            ranks, before = min(layout.pp, len(stages)), (0,) * len(self.blocks)
            kinds: dict[tuple[Counts, ...], RankBlocks] = {}
            for rank in range(ranks):
                chunks = tuple(stages[rank::ranks])
                first = kinds[chunks].rank if chunks in kinds else rank
                kinds[chunks] = RankBlocks(first, chunks, added(*chunks), before)
                before = added(before, stages[rank])
            self._ranks[key] = list(kinds.values())
        return self._ranks[key]

    def _kept_blocks(self, layout: TrainingLayout, micro_batches: int) -> list[KeptBlocks]:
        """What every kind of rank keeps at its fullest moment."""
        key = (layout.pp, layout.virtual_stages, min(micro_batches, 2 * layout.pp))
        if key not in self._kept:
            self._kept[key] = kept = []
            for rank, chunks, *_ in self._rank_blocks(layout):
                moment = fullest_moment(rank, layout.pp, len(chunks), key[2])
                several = (
                    tuple(number * count for count in chunk)
                    for number, chunk in zip(moment.in_flight, chunks, strict=True)
                )
                kept.append(KeptBlocks(added(*several), self._last_kinds(chunks[moment.backward])))
        return self._kept[key]

    def _last_kinds(self, counts: Counts) -> tuple[int, ...]:
        """The kinds of block that may be the last of a virtual stage: its heads, or else its layers."""
        for stage in ("head", "layer", "embed"):
            kinds = tuple(i for i, count in enumerate(counts) if count and self.blocks[i].stage == stage)
            if kinds:
                return kinds
        return ()

    def _rank_parameters(self, layout: TrainingLayout, rank: RankBlocks) -> ParameterCounts:
        parameters = self._block_parameters(layout)
        largest = max((one.largest for count, one in zip(rank.counts, parameters, strict=True) if count), default=0.0)
        dense, experts, frozen = (
            dot(rank.counts, [getattr(one, part) for one in parameters]) for part in ("dense", "experts", "frozen")
        )
        return ParameterCounts(dense, experts, largest, frozen)

    # -------------------------------------------------------------- bounds

    def least_seconds(self, layout: TrainingLayout) -> float:
        """A bound that is quickly worked out: nothing recomputed, no weights gathered, nothing after the passes."""
        return self._pass_seconds(layout, self.block_times(layout, Recomputation("none"), min(layout.zero, 1)))

    def step_seconds(self, layout: TrainingLayout) -> float:
        """At least this long is a step."""
        again = Recomputation("none") if self._some_layers else layout.recomputation
        times = self.block_times(layout, again, layout.zero)
        return self._pass_seconds(layout, times) + self._end_seconds(layout, times) * ROUNDING

    def _pass_seconds(self, layout: TrainingLayout, times: BlockTimes) -> float:
        """The pipeline fills and drains through the stages before a rank, which in between runs all micro-batches."""
        n = self.micro_batches(layout)
        alone, saved = times.alone, times.saved
        ranks = self._rank_blocks(layout)
        least = max(dot(one.before, alone) + n * (dot(one.counts, alone) - saved) for one in ranks)
        return max(0.0, least) * ROUNDING

    def _end_seconds(self, layout: TrainingLayout, times: BlockTimes) -> float:
        """At least this long are the optimizer, and what of the gradients' reduction is not hidden."""
        ranks = [(self._rank_parameters(layout, rank), rank.counts) for rank in self._rank_blocks(layout)]
        parameters, counts = max(ranks, key=lambda one: one[0].total)
        key = (layout.tp, layout.cp, layout.ep, layout.etp, layout.dp, layout.zero, parameters)
        if key not in self._ends:
            one = layout._replace(pp=1, virtual_stages=1, recomputation=Recomputation("none"))
            self._ends[key] = end_costs(self.problem.training(one), parameters)  # its replicas sit on the same links
        end = self._ends[key].beside(dot(counts, times.backward), dot(counts, times.forward))
        return end.optimizer + end.dp_comm + self.problem.request.engine.step_overhead

    def memory(self, layout: TrainingLayout) -> float:
        """At least so many bytes are needed on some GPU."""
        n, sizes = self.micro_batches(layout), self._block_bytes(layout)
        key = (*layout[:8], layout.zero, n > 1)
        if key not in self._states:
            whole = self._whole(layout, layout.recomputation, min(layout.zero, 1))
            here = whole._replace(
                recipe=msgspec.structs.replace(whole.recipe, zero=layout.zero),
                layout=whole.layout._replace(dp=layout.dp, pp=layout.pp),
            )
            self._states[key] = [
                sum(rank_states(here, self._rank_parameters(layout, rank))) for rank in self._rank_blocks(layout)
            ]
        most = max(
            states + dot(kept.counts, sizes.kept) + min((sizes.working[i] for i in kept.first), default=0.0)
            for states, kept in zip(self._states[key], self._kept_blocks(layout, n), strict=True)
        )
        return (most + self.problem.request.engine.memory_reserve) * ROUNDING

    def micro_batches(self, layout: TrainingLayout) -> int:
        """Of one replica in a step."""
        return self.problem.recipe.global_batch_size // (layout.micro_batch_size * layout.dp)
