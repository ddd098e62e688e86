"""The Pareto front: loads of plans that no other beats in tokens/s per GPU, tokens/s per user and cost alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import pareto_front
from ..inference.latency import cost_per_million_tokens
from .plan_table import PlanTable
from .space import precision_label


class LoadPoints(NamedTuple):
    """Loads of plans as columns, whether they meet the SLO or not."""

    prefill_server: np.ndarray  # row of the server table; it decodes, too, unless there is a decode server
    decode_server: np.ndarray  # or -1
    replicas: np.ndarray
    decode_replicas: np.ndarray
    token_budget: np.ndarray  # index of max_num_batched_tokens
    per_gpu: np.ndarray  # output tokens/s, of all GPUs that are given
    per_user: np.ndarray  # output tokens/s
    ttft: np.ndarray  # s
    cost: np.ndarray  # USD for a million output tokens; 0 where no price is known


def load_points(table: PlanTable) -> LoadPoints:
    """Every load of every server, in as many replicas as there is room for; disaggregated plans at their best load."""
    servers, p, num_gpus = table.servers, table.plans, table.problem.space.num_gpus
    served = servers.served()
    server, token_budget, _ = np.nonzero(served)
    replicas = (num_gpus // servers.gpus)[server]
    pairs = p.at(p.decode_server >= 0)
    none = np.full(len(server), -1)
    prefill_server = np.concatenate([server, pairs.prefill_server])
    request_rate = np.concatenate([servers.request_rate[served] * replicas, pairs.request_rate])
    tokens = request_rate * table.problem.traffic.output_len
    gpus = np.concatenate([replicas * servers.gpus[server], pairs.gpus])
    price = servers.per_device("price_per_hour")[prefill_server]
    return LoadPoints(
        prefill_server=prefill_server,
        decode_server=np.concatenate([none, pairs.decode_server]),
        replicas=np.concatenate([replicas, pairs.replicas]),
        decode_replicas=np.concatenate([0 * none, pairs.decode_replicas]),
        token_budget=np.concatenate([token_budget, pairs.token_budget]),
        per_gpu=tokens / num_gpus,
        per_user=1 / np.concatenate([servers.tpot[served], pairs.tpot]),
        ttft=np.concatenate([servers.base_ttft[served], pairs.ttft]),
        cost=cost_per_million_tokens(gpus / np.maximum(tokens, 1e-12), price),
    )


def front_rows(table: PlanTable) -> tuple[list[dict[str, Any]], LoadPoints]:
    """The front as rows for people, and all points for a picture; cost counts where several GPU types have prices."""
    points = load_points(table)
    by_cost = len(table.problem.space.gpus) > 1 and bool((points.cost > 0).all())
    front = pareto_front(points.per_user, points.per_gpu, points.cost if by_cost else None)
    return [_front_row(table, points, n) for n in front.tolist()], points


def _front_row(table: PlanTable, points: LoadPoints, n: int) -> dict[str, Any]:
    server = table.servers.servers[int(points.prefill_server[n])]
    disaggregated = bool(points.decode_server[n] >= 0)
    plan = f"{points.replicas[n]} × {server.layout}"
    if disaggregated:
        plan += f" → {points.decode_replicas[n]} × {table.servers.servers[int(points.decode_server[n])].layout}"
    return {
        "plan": f"{plan} {precision_label(server.kind.quantization, server.kind.kv_cache_dtype)}",
        "gpu": server.request.device.name,
        "mode": "disaggregated" if disaggregated else "aggregated",
        "max_num_batched_tokens": int(table.servers.max_num_batched_tokens[points.token_budget[n]]),
        "output_throughput_per_gpu": float(points.per_gpu[n]),
        "output_throughput_per_user": float(points.per_user[n]),
        "ttft_ms": float(points.ttft[n]) * 1e3,
        "cost_per_million_output_tokens": float(points.cost[n]) or None,
    }
