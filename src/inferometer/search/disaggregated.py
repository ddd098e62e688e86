"""Disaggregated plans: some servers read prompts, others answer, and the cache goes from the ones to the others.

A pair is two servers of one kind (GPU, precision, cache) without pipeline stages, so many of each. Of readers on as
many GPUs, one that is slower in every respect can be in no better plan: its pairs are counted, and left at that.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import undominated
from ..inference.latency import frontend_seconds
from .objective import Aim, Traffic
from .plan_table import MET, MISSES, NO_ROOM, SLACK, TOO_SLOW, Plans, best_load, joined, worst
from .server_costs import Prices
from .space import Space
from .steady_state import evenly, tail, waiting


class Readers(NamedTuple):
    """One way to read prompts: a server and its token budget."""

    server: int
    budget: int
    alone: float  # s of a prompt
    rate: float  # prompts/s at most
    handed: float
    each: float  # s of a prompt in a full queue of one rank


def disaggregated(prices: Prices, space: Space, traffic: Traffic, aim: Aim) -> tuple[Plans | None, int]:
    """The plans that are no worse than others in every respect, and how many were considered."""
    parts: list[Plans] = []
    count = 0
    for kind in dict.fromkeys(server.kind for server in prices.servers):
        mine = np.array([n for n, one in enumerate(prices.servers) if one.kind == kind and one.layout.pp == 1], int)
        if not len(mine):
            continue
        writers = mine[prices.writing[mine].max(1) > 0]
        readers = [(int(v), t) for v in mine for t in range(len(prices.budgets))]
        sizes, wide = prices.gpus[writers], np.array([prices.gpus[v] for v, _ in readers])
        pairs = _pairs(space.num_gpus, wide[:, None], sizes[None, :], bool(traffic.rate))
        count += int(pairs.sum())
        for reader in _best(prices, readers):
            found = _with(reader, writers, prices, space, traffic, aim)
            if found is not None:
                parts.append(found)
    return (joined(parts) if parts else None), count


def _pairs(gpus: int, a: np.ndarray, b: np.ndarray, free: bool) -> np.ndarray:
    """Numbers of pools of both sizes: any that fit, or unless ``free`` as many that answer as there is room for."""
    total = np.zeros(np.broadcast_shapes(a.shape, b.shape), int)
    for x in range(1, gpus + 1):
        left = np.maximum(gpus - x * a, 0) // b
        total += left if free else (left > 0).astype(int)
    return total


def _best(prices: Prices, options: list[tuple[int, int]]) -> list[Readers]:
    """Readers that no other on as many GPUs beats in time, rate and handover alike."""
    found: list[Readers] = []
    for v, t in options:
        dp = prices.servers[v].layout.dp
        link = dp / prices.handed[v] if prices.handed[v] else np.inf  # a rank sends one cache at a time
        rate = min(float(prices.reading[v, t]), link)
        found.append(Readers(v, t, float(prices.alone[v, t]), rate, float(prices.handed[v]), dp / rate))
    figures = np.array([(prices.gpus[r.server], r.alone, -r.rate, r.handed, r.each) for r in found])
    return [found[n] for n in undominated(figures[:, 1:], figures[:, 0])]


def _with(
    reader: Readers, writers: np.ndarray, prices: Prices, space: Space, traffic: Traffic, aim: Aim
) -> Plans | None:
    """All plans with these readers: rows are numbers of readers, then servers that answer, then loads or numbers."""
    wide, sizes = int(prices.gpus[reader.server]), prices.gpus[writers]
    x = np.arange(1, (space.num_gpus - int(sizes.min(initial=space.num_gpus))) // wide + 1)
    if not len(x) or not len(writers):
        return None
    left = np.maximum(space.num_gpus - x[:, None] * wide, 0) // sizes[None, :]
    writing, gap = prices.writing[writers], prices.gap[writers]
    if traffic.rate:  # any number that answer: each at the lightest load that carries its share
        y = np.arange(1, max(int(left.max()), 1) + 1)
        share = traffic.rate / y
        carried = writing[:, :, None] >= share
        at = carried.argmax(1)  # [writers, y]
        able = carried.any(1)[None] & (y <= left[:, :, None])
        at = np.broadcast_to(np.where(carried.any(1), at, writing.argmax(1)[:, None]), able.shape)
        rate: Any = np.full(able.shape, traffic.rate)
        many = np.broadcast_to(y, able.shape)
        gaps = gap[np.arange(len(writers))[None, :, None], at]
    else:
        many = np.broadcast_to(left[:, :, None], (*left.shape, gap.shape[1]))
        rate = many * writing[None]
        able = (many > 0) & (rate > 0)
        gaps = np.broadcast_to(gap[None], rate.shape)
        at = np.broadcast_to(np.arange(gap.shape[1]), rate.shape)
    used = rate / (x[:, None, None] * reader.rate)
    first = prices.servers[reader.server]
    spread = 1 / (x[:, None, None] * first.layout.dp * traffic.burstiness)
    queue = waiting(used) * reader.each * evenly(used, spread)
    ahead = 1.5 if prices.servers[0].request.engine.async_scheduling else 0.5
    sent = np.maximum(reader.handed, prices.handed[writers])[None, :, None]
    fixed = frontend_seconds(first.bind(), traffic.input_len) + reader.alone + sent + (1 + ahead) * gaps
    ttft, late = fixed + queue, fixed + queue * tail(used, aim.share)
    slow, off = used >= 1, worst(aim, traffic, late, gaps)
    kept = able & ~slow & (off <= SLACK)
    hope = rate
    if not traffic.rate:  # the best load of each
        hopeful = best_load(aim, traffic, able & ~slow, off, rate, ttft, gaps, SLACK)[..., None]
        hope = np.take_along_axis(rate, hopeful, -1)
        one = best_load(aim, traffic, able & ~slow, off, rate, ttft, gaps)[..., None]
        shape = rate.shape
        rate, ttft, late, gaps, many, off, at, able, slow, kept = (
            np.take_along_axis(np.broadcast_to(a, shape), one, -1)
            for a in (rate, ttft, late, gaps, many, off, at, able, slow, kept)
        )
    verdict = np.where(kept, MET, np.where(~able, NO_ROOM, np.where(slow, TOO_SLOW, MISSES)))
    i, j, _ = np.indices(verdict.shape)
    count = verdict.size
    others = many.ravel()
    readers, answering = x[i.ravel()], j.ravel()
    found = Plans(
        *[
            np.full(count, reader.server),
            readers,
            writers[answering],
            others,
            np.full(count, reader.budget),
            np.full(count, len(prices.sequences) - 1),
            at.ravel(),
            readers * wide + others * sizes[answering],
            *(column.ravel() for column in (rate, hope, ttft, late, gaps, verdict, off)),
        ]
    )
    return found.at((others > 0) & (found.gpus <= space.num_gpus))
