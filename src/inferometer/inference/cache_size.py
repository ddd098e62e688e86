"""Bytes of the KV cache of one sequence, on a GPU and on all those of a replica."""

from __future__ import annotations

from ..base.symbols import Value, evaluate
from ..costs.binding import BoundPlan, stage_plans
from ..costs.step import cache_entries


def cache_bytes(bound_plan: BoundPlan, length: Value, layers: tuple[int, ...] | None = None) -> Value:
    """Cache of one sequence of ``length`` tokens: latents, windows and recurrent states included."""
    total: Value = 0.0
    for block in bound_plan.model.blocks:
        env = {**bound_plan.env, **block.dims}
        times = block.count if layers is None else len(set(block.layers) & set(layers))
        for op in block.ops:
            if op.cache is not None:
                held = cache_entries(bound_plan.model.spans[op.cache.span], length)
                each = evaluate(op.cache.per_token, env) * held + evaluate(op.cache.per_sequence, env)
                total = total + times * each
    return total


def replica_cache_bytes(bound_plan: BoundPlan, length: Value) -> Value:
    """What grows with the tokens of a sequence, on all GPUs of a replica: ``replica_cache_bytes(bound_plan, 8000)``

    What each rank keeps a copy of (latent caches under tensor parallelism) counts once for each, as vLLM stores it.
    """
    stages: Value = 0.0
    for stage in stage_plans(bound_plan):
        stages = stages + cache_bytes(stage, length) - cache_bytes(stage, 0)
    return stages * bound_plan.plan.tensor_parallel_size
