"""Replicas alike, ready to be run: their plan, the tables of their steps, and the blocks of their KV caches.

pool = build_pool(request, replicas=2, trace=trace)
pool.num_blocks, pool.kv_cache_tokens
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..costs import parallelism
from ..costs.binding import BoundPlan, stage_plans
from ..costs.step import Group, Step
from ..inference import latency, speculation
from ..inference.memory import memory_table
from ..inference.request import Request
from ..inference.workload import batch_shape_of
from ..specs.structs import Workload
from .step_cost import StepCost, step_cost
from .trace import Trace

FREQUENT_LENGTHS = 8  # distinct prompt lengths up to which each is worth a table of its own
UNLIMITED = 10**9  # blocks of a cache that does not grow with the tokens (recurrent models); sequences


class ReplicaPool(NamedTuple):
    """Replicas alike."""

    bound_plan: BoundPlan
    replicas: int
    stages: list[StepCost]
    num_blocks: int  # of each replica's KV cache
    max_num_seqs: int  # that its memory has room for
    reason: str  # why it cannot work; empty if it can
    warnings: tuple[str, ...]
    request: Request  # what it was built from
    alike: bool = False  # all ranks of a server have the same load, so that one stands for all

    @property
    def ranks_per_server(self) -> int:
        """Replicas that step together: data-parallel ranks of a mixture (of one stage) meet at its experts."""
        return int(self.bound_plan.env["dp"]) if len(self.stages) == 1 and not self.alike else 1

    @property
    def kv_cache_tokens(self) -> int:
        """What the KV cache of one replica holds."""
        return self.num_blocks * self.bound_plan.plan.block_size

    def speed(self) -> float:
        """Tokens a second of a typical batch (32 sequences of 1,024 tokens), to compare pools by."""
        step = Step((Group(32, 1, 1024, 1, True),))
        seconds = sum(float(stage) for stage in latency.stage_seconds(self.bound_plan, step))
        return 32 / seconds if seconds else 1.0


MAX_REPLICAS = 10_000  # each costs some tenths of a ms before it has served anything


def build_pool(request: Request, replicas: int, trace: Trace, num_gpu_blocks: int | None = None) -> ReplicaPool:
    """Replicas of a plan for the requests of a trace, each with so many KV blocks, or with what fits."""
    if replicas > MAX_REPLICAS:
        raise BadValue(
            f"a simulation has at most {MAX_REPLICAS:,} replicas, not {replicas:,}: some of them with their share of "
            "the requests show the same",
            field="data_parallel_size",
        )
    if request.model.kind != "decoder":
        raise BadValue(f"{request.model.name} is a {request.model.kind} model: only a decoder generates tokens")
    bound_plan = _bound(request)
    plan = request.plan
    mean = math.ceil((trace.input_tokens + trace.output_tokens).mean()) if len(trace) else 2
    layout_reason = parallelism.illegal_reason(request.model, plan, request.device) or speculation.draft_reason(
        bound_plan
    )
    num_blocks, max_num_seqs, memory_reason = _kv_capacity(bound_plan, max(2, min(mean, plan.max_model_len or mean)))
    if num_gpu_blocks is not None:
        num_blocks, memory_reason = num_gpu_blocks, ""
    reason = layout_reason or memory_reason
    return ReplicaPool(
        bound_plan=bound_plan,
        replicas=replicas,
        stages=[] if reason else stage_costs(bound_plan, trace),
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        reason=reason,
        warnings=(*request.warnings, *bound_plan.notes),
        request=request,
    )


def with_tables(pool: ReplicaPool, trace: Trace) -> ReplicaPool:
    """A pool that came from another process without its plan and its tables, with both."""
    bound_plan = _bound(pool.request)
    return pool._replace(bound_plan=bound_plan, stages=stage_costs(bound_plan, trace))


def _bound(request: Request) -> BoundPlan:
    bound_plan = request.bind()
    return bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})  # sequences of all lengths


def stage_costs(bound_plan: BoundPlan, trace: Trace) -> list[StepCost]:
    """Tables of the steps that the requests of a trace need, of every pipeline stage."""
    longest = int((trace.input_tokens + trace.output_tokens).max(initial=2)) if len(trace) else 2
    longest = min(longest, bound_plan.plan.max_model_len or longest)
    prompts = np.unique(trace.input_tokens)
    frequent = prompts.tolist() if len(prompts) <= FREQUENT_LENGTHS else []
    return [step_cost(stage, longest, frequent) for stage in stage_plans(bound_plan)]


def _kv_capacity(bound_plan: BoundPlan, mean_len: int) -> tuple[int, int, str]:
    """Blocks of a replica's KV cache, sequences that its memory has room for, and why there is none.

    Where windows or states make a token's share depend on the length, sequences of the mean length count.
    """
    sized = bound_plan._replace(
        plan=msgspec.structs.replace(bound_plan.plan, max_model_len=mean_len),
        engine=msgspec.structs.replace(bound_plan.engine, kv_cache_groups=False),  # what is held, not what is admitted
    )
    workload = Workload(batch_size=bound_plan.plan.data_parallel_size, input_len=mean_len - 1, output_len=1)
    table = memory_table(sized, batch_shape_of(sized, workload))
    if table.max_total_tokens is None:
        num_blocks, max_num_seqs = UNLIMITED, table.max_batch_size // bound_plan.plan.data_parallel_size
    else:
        num_blocks, max_num_seqs = table.max_total_tokens // bound_plan.plan.block_size, UNLIMITED
    if num_blocks and max_num_seqs:
        return num_blocks, max_num_seqs, ""
    needed, usable = table.total_bytes / 1e9, table.usable_bytes / 1e9
    reason = f"needs {needed:.1f} GB of {usable:.1f} GB usable per GPU, which leaves no room for the KV cache"
    return num_blocks, max_num_seqs, reason
