"""How many sequences a server's memory holds: of every stage, for every limit that its engine may be started with."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..costs.binding import BoundPlan
from ..costs.step import Group, Step
from ..inference import memory
from ..inference.memory import drafter
from ..network.graph import Block
from .objective import Traffic
from .steady_state import LoadGrid, distinct_stages, single_layer


class Shortfall(NamedTuple):
    """Bytes that one request needs on the fullest GPU, which are more than the engine may use."""

    needed_bytes: float
    usable_bytes: float

    def __str__(self) -> str:
        needed, usable = self.needed_bytes / 1e9, self.usable_bytes / 1e9
        return f"needs {needed:.1f} GB of the {usable:.1f} GB per GPU that it may use"


class KVCapacity(NamedTuple):
    """How many sequences fit beside the weights, and the bytes of the fullest GPU with one of them."""

    max_seqs: np.ndarray  # [token_budget, seqs]
    decode_seqs: float  # on a rank of a decode pool, with the engine's own limits
    needed_bytes: float
    usable_bytes: float

    @property
    def shortfall(self) -> Shortfall | None:
        """What is missing where not even one request fits; None if one does."""
        return None if (self.max_seqs >= 1).any() else Shortfall(self.needed_bytes, self.usable_bytes)


class BlockBytes(NamedTuple):
    """Bytes on one GPU of one layer of a block, or of a stage."""

    weights: float
    kv_cache: Any  # [length] of one sequence at each of the lengths
    activations: Any  # [token_budget, seqs] peak of the largest step


class StageBytes:
    """Bytes of any stage of a layout: ``StageBytes(bound_plan, lengths, largest_step).total(stage.bound_plan)``"""

    def __init__(self, bound_plan: BoundPlan, lengths: np.ndarray, largest_step: Step) -> None:
        self.bound_plan, self.lengths, self.largest_step = bound_plan, lengths, largest_step
        self._layer_bytes: dict[int, BlockBytes] = {}  # by the identity of a block's operators

    def total(self, stage: BoundPlan) -> BlockBytes:
        """Weights and KV cache of all layers of a stage, and the highest peak of activations among them."""
        weights, activations = 0.0, np.zeros(())
        kv_cache = np.zeros(len(self.lengths))
        for block in stage.model.blocks:
            key = id(block.ops)
            if key not in self._layer_bytes:
                self._layer_bytes[key] = self._of_layer(block, stage)
            layer = self._layer_bytes[key]
            weights, kv_cache = weights + block.count * layer.weights, kv_cache + block.count * layer.kv_cache
            activations = np.maximum(activations, layer.activations)
        return BlockBytes(weights, kv_cache, activations)

    def _of_layer(self, block: Block, stage: BoundPlan) -> BlockBytes:
        model = msgspec.structs.replace(stage.model, blocks=(single_layer(block),))
        layer = self.bound_plan._replace(model=model)
        return BlockBytes(
            weights=float(memory.weight_bytes(layer)),
            kv_cache=memory.cache_bytes(layer, self.lengths),
            activations=memory.activation_bytes(layer, self.largest_step),
        )


class _Reserved(NamedTuple):
    """Bytes of a GPU that are not the target model's KV cache, and of the draft model's KV cache."""

    usable: float
    engine: float  # set aside by the engine, and weights of the draft model
    draft_cache: float  # of one sequence


def kv_capacities(
    bound_plans: list[BoundPlan], loads: LoadGrid, traffic: Traffic, max_num_seqs: tuple[int, ...]
) -> list[KVCapacity]:
    """Of one layout at several depths of pipeline: bytes of a block are counted once for all."""
    engine, plan = bound_plans[0].engine, bound_plans[0].plan
    shared = float(traffic.prefix_len if engine.prefix_caching else 0)
    lengths = np.array([traffic.input_len + traffic.output_len / 2, float(traffic.max_len), shared])
    seqs = np.array(max_num_seqs, float)
    stage_bytes = StageBytes(bound_plans[0], lengths, _largest_step(engine.profile_run, loads, seqs))
    draft_weights, draft_cache = drafter(bound_plans[0], lengths[0])
    reserved = _Reserved(
        usable=bound_plans[0].device.memory * plan.gpu_memory_utilization,
        engine=engine.memory_reserve + draft_weights,
        draft_cache=draft_cache,
    )
    own_limits = (  # nearest values of the axes to the engine's own limits
        np.abs(loads.token_budgets - plan.max_num_batched_tokens).argmin(),
        np.abs(seqs - plan.max_num_seqs).argmin(),
    )
    capacities = []
    for bound_plan in bound_plans:
        max_seqs, needed = np.full((loads.token_budgets.size, seqs.size), np.inf), 0.0
        for stage in distinct_stages(bound_plan):
            stage_seqs, stage_needed = _stage_capacity(stage_bytes.total(stage.bound_plan), reserved, max_seqs.shape)
            max_seqs, needed = np.minimum(max_seqs, stage_seqs), max(needed, stage_needed)
        capacities.append(KVCapacity(max_seqs, float(max_seqs[own_limits]), needed, reserved.usable))
    return capacities


def _stage_capacity(stage: BlockBytes, reserved: _Reserved, shape: tuple[int, ...]) -> tuple[np.ndarray, float]:
    """Sequences that one stage's GPUs hold [token_budget, seqs], and the fewest bytes that they need for one.

    The first sequence may be the longest; every other has mean length, half of its answer written, and shares the
    prefix.
    """
    mean, longest, prefix = stage.kv_cache
    fixed = stage.weights + reserved.engine + np.broadcast_to(stage.activations, shape)
    left = reserved.usable - fixed - longest - reserved.draft_cache
    per_sequence = max(mean - prefix + reserved.draft_cache, 1.0)
    max_seqs = np.where(left >= 0, 1 + (left - prefix) // per_sequence, 0)
    return max_seqs, float((fixed + longest).min())


def _largest_step(profile_run: bool, loads: LoadGrid, seqs: np.ndarray) -> Step:
    """The step for which an engine keeps memory for activations, by limits [token_budget, seqs].

    An engine with a profile run sets aside what ``max_num_batched_tokens`` in ``max_num_seqs`` sequences need; others
    are as large as the last chunk of a prompt.
    """
    token_budget = loads.token_budgets[:, None]
    if profile_run:
        rows = np.minimum(token_budget, seqs[None, :])
        return Step((Group(rows, token_budget / rows, 0, 1),))
    chunk = np.minimum(token_budget, loads.new_tokens) + 0 * seqs[None, :]
    return Step((Group(token_budget / chunk, chunk, loads.new_tokens - chunk, 1),))
