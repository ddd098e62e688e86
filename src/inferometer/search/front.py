"""The Pareto front: loads of plans that no other beats in tokens/s per GPU, tokens/s per user and cost alike."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import pareto_front
from .plan_table import Book


class Points(NamedTuple):
    """Loads of plans, in columns, whether they keep limits or not."""

    first: np.ndarray  # the server that reads (and answers)
    second: np.ndarray  # the server that answers, or -1
    replicas: np.ndarray
    others: np.ndarray
    budget: np.ndarray  # index of --max-num-batched-tokens
    per_gpu: np.ndarray  # output tokens/s, of all GPUs that are there
    per_user: np.ndarray  # output tokens/s
    ttft: np.ndarray
    cost: np.ndarray  # USD for a million output tokens; 0 where nobody knows


def points(book: Book) -> Points:
    """Every load of every server, as many of them as there is room for; and pools at the load that suits them best."""
    prices, p, gpus = book.prices, book.plans, book.space.num_gpus
    able = prices.fits.any(2) & (prices.rate > 0)
    server, budget, _ = np.nonzero(able)
    replicas = (gpus // prices.gpus)[server]
    split = np.flatnonzero(p.second >= 0)
    nobody = np.full(len(server), -1)
    first = np.concatenate([server, p.first[split]])
    tokens = np.concatenate([prices.rate[able] * replicas, p.rate[split]]) * book.traffic.output_len
    used = np.concatenate([replicas * prices.gpus[server], p.gpus[split]])
    price = np.array([one.request.device.price_per_hour for one in prices.servers])[first]
    return Points(
        first,
        np.concatenate([nobody, p.second[split]]),
        np.concatenate([replicas, p.replicas[split]]),
        np.concatenate([0 * nobody, p.others[split]]),
        np.concatenate([budget, p.budget[split]]),
        tokens / gpus,
        1 / np.concatenate([prices.tpot[able], p.tpot[split]]),
        np.concatenate([prices.ttft[able], p.ttft[split]]),
        used * price / 3600 / np.maximum(tokens, 1e-12) * 1e6,
    )


def listed(book: Book) -> tuple[list[dict[str, Any]], Points]:
    """The front as rows for people, and all points for a picture."""
    every = points(book)
    several = len(book.space.gpus) > 1 and bool((every.cost > 0).all())
    rows = pareto_front(every.per_user, every.per_gpu, every.cost if several else None)
    names = [f"{one.layout} {one.kind[1]}, KV {one.kind[2]}" for one in book.prices.servers]
    found = []
    for n in rows.tolist():
        one = book.prices.servers[int(every.first[n])]
        plan = f"{every.replicas[n]} × {names[int(every.first[n])]}"
        if every.second[n] >= 0:
            plan = f"{every.replicas[n]} × {one.layout} → {every.others[n]} × {names[int(every.second[n])]}"
        found.append(
            {
                "plan": plan,
                "gpu": one.request.device.name,
                "mode": "disaggregated" if every.second[n] >= 0 else "aggregated",
                "max_num_batched_tokens": int(book.prices.budgets[every.budget[n]]),
                "output_throughput_per_gpu": float(every.per_gpu[n]),
                "output_throughput_per_user": float(every.per_user[n]),
                "ttft_ms": float(every.ttft[n]) * 1e3,
                "cost_per_million_output_tokens": float(every.cost[n]) or None,
            }
        )
    return found, every
