"""What a replica is made of: the plan's step times, the blocks of its cache, and what its engine allows itself."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue
from ..costs import parallelism
from ..costs.binding import BoundPlan, stage_plans
from ..costs.step import Group, Step
from ..inference import latency, memory, speculation
from ..inference.memory import memory_table
from ..inference.request import Request
from ..inference.workload import batch_shape_of
from ..specs.structs import Hardware, Link, Workload
from .engine import SchedulerLimits
from .step_cost import StepCost
from .trace import Trace

FEW = 8  # lengths of prompts that are worth a table each
PLENTY = 10**9  # blocks of a cache that does not grow with the tokens (recurrent models)


class ReplicaPool(NamedTuple):
    """Replicas alike."""

    bound_plan: BoundPlan
    replicas: int
    stages: list[StepCost]
    blocks: int  # of each replica's cache
    seqs: int  # that its memory has room for
    reason: str  # why it cannot work; empty if it can
    warnings: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """What the cache of one replica holds."""
        return self.blocks * self.bound_plan.plan.block_size

    def speed(self) -> float:
        """Tokens a second of a usual batch, to compare pools by."""
        step = Step((Group(32, 1, 1024, 1, True),))
        took = sum(float(seconds) for seconds in latency.stage_seconds(self.bound_plan, step))
        return 32 / took if took else 1.0


def build_pool(request: Request, replicas: int, trace: Trace, blocks: int | None = None) -> ReplicaPool:
    """So many replicas of a plan, for the requests of a trace; with ``blocks`` in each cache, or what fits."""
    if request.model.kind != "decoder":
        raise BadValue(
            f"{request.model.name} is a {request.model.kind} model: only a decoder answers requests with tokens"
        )
    bound_plan = request.bind()
    bound_plan = bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})  # sequences of all lengths
    plan = request.plan
    lengths = trace.input_tokens + trace.output_tokens
    usual, longest = (math.ceil(lengths.mean()), int(lengths.max())) if len(trace) else (2, 2)
    longest = min(longest, plan.max_model_len or longest)
    prompts = np.unique(trace.input_tokens)
    why = parallelism.illegal_reason(request.model, plan, request.device) or speculation.draft_reason(bound_plan)
    room, seqs, lack = _room(bound_plan, max(2, min(usual, plan.max_model_len or usual)))
    if blocks is not None:
        room, lack = blocks, ""
    often = prompts.tolist() if len(prompts) <= FEW else []
    parts = [StepCost(part, longest, often) for part in stage_plans(bound_plan)] if not (why or lack) else []
    return ReplicaPool(bound_plan, replicas, parts, room, seqs, why or lack, (*request.warnings, *bound_plan.notes))


def _room(bound_plan: BoundPlan, usual: int) -> tuple[int, int, str]:
    """Blocks of a replica's cache, sequences that its memory has room for, and why there is none.

    Where windows or states make a token's share depend on the length, sequences of the ``usual`` length count.
    """
    sized = bound_plan._replace(plan=msgspec.structs.replace(bound_plan.plan, max_model_len=usual))
    work = Workload(batch_size=bound_plan.plan.data_parallel_size, input_len=usual - 1, output_len=1)
    held = memory_table(sized, batch_shape_of(sized, work))
    size = bound_plan.plan.block_size
    if held.max_total_tokens is None:
        seqs = held.max_batch_size // bound_plan.plan.data_parallel_size
        return PLENTY, seqs, "" if seqs else _too_much(held.total_bytes, held.usable_bytes)
    blocks = held.max_total_tokens // size
    return blocks, PLENTY, "" if blocks else _too_much(held.total_bytes, held.usable_bytes)


def _too_much(needed: float, usable: float) -> str:
    return f"needs {needed / 1e9:.1f} GB of the {usable / 1e9:.1f} GB per GPU that it may use, and leaves no KV cache"


def scheduler_limits(
    found: ReplicaPool,
    scheduler: str,
    policy: str,
    *,
    piece: int,
    lag: bool,
    wasted: bool,
    interval: int = 1,
    hold: int = 0,
    company: float = 0.0,
) -> SchedulerLimits:
    """What the engine of a pool allows itself in a step."""
    plan, width = found.bound_plan.plan, found.stages[0].width
    tokens, seqs = plan.max_num_batched_tokens, min(plan.max_num_seqs, found.seqs)
    if tokens < seqs and scheduler in ("vllm", "sarathi", "trtllm"):
        raise BadValue(
            f"--max-num-batched-tokens {tokens:,} must be at least --max-num-seqs {seqs:,}: everyone who "
            "decodes needs a token of the budget"
        )
    static = scheduler == "static"
    return SchedulerLimits(
        tokens=tokens,
        seqs=max(1, min(seqs, tokens // width)),
        width=width,
        piece=piece or 10**9,
        whole=scheduler == "sarathi",
        lag=lag and not static,
        wasted=wasted,
        padded=static,
        priority=policy == "priority",
        interval=interval,
        hold=hold,
        company=math.ceil(company * tokens),
    )


def kv_transfer_seconds(readers: ReplicaPool, writers: ReplicaPool, prompts: np.ndarray) -> list[float]:
    """Seconds that the cache of each prompt is on its way from one replica to another.

    Every GPU sends its share over its own link, and every GPU at the other end gets its own; the slower side counts.
    """
    took = np.zeros(len(prompts))
    for pool in (readers, writers):
        link = _link(pool.bound_plan.device)
        size = np.max(
            [
                np.broadcast_to(memory.cache_bytes(part, prompts.astype(float)), prompts.shape)
                for part in stage_plans(pool.bound_plan)
            ],
            axis=0,
        )
        took = np.maximum(took, link.latency + size / link.bandwidth)
    found: list[float] = took.tolist()
    return found


def _link(device: Hardware) -> Link:
    """What leaves a machine: the network, where it has one."""
    return device.links.get("network") or device.links.get(device.interconnect) or Link(bandwidth=25e9, latency=1e-5)
