"""How long a sequence the servers of a plan take: the model's own length where one such sequence fits in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from ...inference.memory import memory_table
from ...inference.request import Request
from ...inference.workload import batch_shape_of
from ...specs.structs import Workload

MARGIN = 0.9  # of the KV cache that is predicted: an engine that finds less room than one sequence needs does not start
ROUND = 1024


class ContextLength(NamedTuple):
    """The longest sequence; ``limit``: what servers must be told, 0 where the model's own length fits."""

    longest: int
    limit: int = 0
    reason: str = ""


def context_length(requests: Iterable[Request], longest_request: int, given: int | None) -> ContextLength:
    """For the pools of a plan: ``context_length([request], 4500, None)  # ContextLength(131072, 0, '')``"""
    plans = list(requests)
    own = min(request.plan.max_model_len for request in plans)
    if given is not None:
        return ContextLength(given, given)
    room = min((_tokens(request) for request in plans), default=own)
    if not own or own <= MARGIN * room:
        return ContextLength(own)
    limit = max(int(MARGIN * room) // ROUND * ROUND, -(-longest_request // 256) * 256)
    limit = min(limit, own)
    reason = (
        f"sequences end at {limit:,} tokens, not at the model's {own:,}: the KV cache has room for about {room:,}; the "
        f"longest request has {longest_request:,}"
    )
    return ContextLength(limit, limit, reason)


def _tokens(request: Request) -> int:
    """Tokens of the longest sequence that the KV cache of one rank holds."""
    bound_plan, length = request.bind(), request.plan.max_model_len
    for _ in range(3):  # layers with windows hold more tokens of longer sequences
        sized = bound_plan._replace(plan=msgspec.structs.replace(bound_plan.plan, max_model_len=length))
        workload = Workload(batch_size=request.plan.data_parallel_size, input_len=max(length - 1, 1), output_len=1)
        tokens = memory_table(sized, batch_shape_of(sized, workload)).max_total_tokens
        if tokens is None or tokens >= length:
            return length if tokens is None else tokens
        length = max(tokens, 2)
    return length
