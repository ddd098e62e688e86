"""Seconds and bytes of pipeline stages, for one set of steps and every depth of pipeline: each block is estimated once.

A stage is some layers of each block. So a model cut into 16 stages costs no more to estimate than the whole: its blocks
are estimated for one layer and multiplied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.cache import cache_by_identity
from ..base.symbols import Value
from ..costs import host, roofline
from ..costs.binding import BoundPlan, calibration_factor, padded_env, stage_plans, step_env
from ..costs.step import Step
from ..inference import memory
from ..network.graph import Block


class DistinctStage(NamedTuple):
    """A pipeline stage, and how many stages of the pipeline are like it."""

    bound_plan: BoundPlan
    copies: int


def distinct_stages(bound_plan: BoundPlan) -> list[DistinctStage]:
    """The stages of a plan's pipeline, equal ones once: ``sum(stage.copies for …)`` is the pipeline's depth."""
    distinct: dict[tuple[tuple[int, int], ...], DistinctStage] = {}
    for stage in stage_plans(bound_plan):
        key = tuple((id(block.ops), block.count) for block in stage.model.blocks)
        known = distinct.get(key, DistinctStage(stage, 0))
        distinct[key] = known._replace(copies=known.copies + 1)
    return list(distinct.values())


@cache_by_identity(2000)
def _single_layer(block: Block) -> Block:
    return msgspec.structs.replace(block, layers=block.layers[:1])


class StageSeconds:
    """Seconds of some steps on any stage of a layout: ``StageSeconds(bound_plan, step).kernels(stage.bound_plan)``"""

    def __init__(self, bound_plan: BoundPlan, step: Step) -> None:
        self.bound_plan = bound_plan
        self.env = step_env(bound_plan, step)
        self.padded_env = padded_env(bound_plan, self.env)
        self._layer_seconds: dict[int, Value] = {}  # by the identity of a block's operators

    def kernels(self, stage: BoundPlan) -> Value:
        """Seconds of a stage's kernels. Activations between stages go over the stage's own link."""
        total: Value = 0.0
        for block in stage.model.blocks:
            if block.stage == "vision":
                continue
            if block.name == "pipeline":
                link = {name: stage.env[name] for name in ("pp_bandwidth", "pp_latency")}
                total = total + roofline.kernel_seconds((block,), {**self.padded_env, **link}, stage.sources)
                continue
            key = id(block.ops)
            if key not in self._layer_seconds:
                layer = (_single_layer(block),)
                self._layer_seconds[key] = roofline.kernel_seconds(layer, self.padded_env, self.bound_plan.sources)
            total = total + block.count * self._layer_seconds[key]
        return total

    def total(self, stage: BoundPlan, kernels: Value, thermal_state: Value = 0.0) -> Any:
        """A step's seconds on a stage with these kernel seconds, the host's time included."""
        env = {**self.env, "thermal_state": thermal_state}
        overhead = host.host_seconds(stage.model, stage.engine, env, kernels)
        return (kernels + overhead) * calibration_factor(stage, env)


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
        model = msgspec.structs.replace(stage.model, blocks=(_single_layer(block),))
        layer = self.bound_plan._replace(model=model)
        return BlockBytes(
            weights=float(memory.weight_bytes(layer)),
            kv_cache=memory.cache_bytes(layer, self.lengths),
            activations=memory.activation_bytes(layer, self.largest_step),
        )
