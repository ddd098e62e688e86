"""Plans as columns: replicas of one server, or pools that read and answer, each at the load that suits it best.

Every plan is kept, also those that fail, with the figures that say why: nothing is dropped before it was looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .asked import Aim, Traffic
from .prices import Prices
from .space import Space
from .steady import evenly, tail

MET, MISSES, TOO_SLOW, NO_ROOM = range(4)  # keeps the limits; does not; cannot carry the rate; no step or cache for it
SLACK = 1.1  # means are off by some percent: plans that miss a limit by less are left to the simulator


class Plans(NamedTuple):
    """One row per plan. ``second`` is -1 where one server reads and answers."""

    first: np.ndarray  # the server that reads (and answers)
    replicas: np.ndarray
    second: np.ndarray  # the server that answers
    others: np.ndarray  # how many of those
    budget: np.ndarray  # index of --max-num-batched-tokens
    seqs: np.ndarray  # index of --max-num-seqs
    load: np.ndarray  # index of the load that it is priced at
    gpus: np.ndarray
    rate: np.ndarray  # requests/s at that load, of all servers; where it is too slow, the most it could
    hope: np.ndarray  # requests/s if the means were off in its favour
    ttft: np.ndarray  # mean
    late: np.ndarray  # TTFT that the share of the requests that counts keeps
    tpot: np.ndarray
    verdict: np.ndarray
    miss: np.ndarray  # the worst of figure over limit

    def at(self, rows: Any) -> Plans:
        """Some of the plans: ``plans.at(plans.verdict == MET)``"""
        return Plans(*(column[rows] for column in self))


def joined(parts: list[Plans]) -> Plans:
    """All plans of several tables."""
    return Plans(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


def worst(aim: Aim, traffic: Traffic, late: Any, tpot: Any) -> Any:
    """How far figures are above the limits, as a ratio: 1 is just kept, 0 where there are none."""
    values = {"ttft": late, "tpot": tpot, "e2el": late + (traffic.output_len - 1) * tpot}
    found: Any = np.zeros(np.broadcast_shapes(np.shape(late), np.shape(tpot)))
    for name, limit in aim.limits.items():
        found = np.maximum(found, values[name] / limit)
    return found


def wanted(aim: Aim, traffic: Traffic, rate: Any, ttft: Any, tpot: Any) -> Any:
    """What makes one load of a plan better than another: more requests, or a faster answer."""
    return -(ttft + (traffic.output_len - 1) * tpot) if aim.objective == "latency" else rate


def best_load(aim: Aim, traffic: Traffic, able: Any, off: Any, rate: Any, ttft: Any, tpot: Any,
              slack: float = 1.0) -> Any:  # fmt: skip
    """Along the last axis: the best of the loads that keep all limits, or the one that is nearest to that."""
    kept = able & (off <= slack)
    best = np.where(kept, wanted(aim, traffic, rate, ttft, tpot), -np.inf).argmax(-1)
    return np.where(kept.any(-1), best, np.where(able, off, np.inf).argmin(-1))


def aggregated(prices: Prices, space: Space, traffic: Traffic, aim: Aim) -> Plans:
    """Replicas of every server with every limit: with a rate to carry any number of them, else as many as fit."""
    seqs, budgets = prices.sequences[None, :], prices.budgets[:, None]
    legal = (seqs <= budgets) if prices.load.mixes else np.ones((len(prices.budgets), len(prices.sequences)), bool)
    able = prices.fits & (prices.rate > 0)[:, :, None, :] & legal[None, :, :, None]
    most = space.num_gpus // prices.gpus
    ranks = np.array([server.layout.dp for server in prices.servers])
    counts = np.arange(1, int(most.max(initial=1)) + 1) if traffic.rate else np.array([0])
    parts = []
    for count in counts:
        rows = np.flatnonzero(most >= max(count, 1))
        replicas = np.full(len(rows), count) if traffic.rate else most[rows]
        need = traffic.rate / count if traffic.rate else 0.0
        # requests dealt out in turn come more evenly than at random: the wait behind others shrinks with their number
        spread = 1 / (replicas * ranks[rows] * traffic.burstiness)
        wait = prices.queue[rows] * evenly(prices.used[rows], spread[:, None, None])
        late = prices.ttft[rows] + wait * tail(prices.used[rows], aim.share)
        figures = (prices.rate[rows], prices.ttft[rows] + wait, late, prices.tpot[rows])
        every = [np.broadcast_to(x[:, :, None, :], able[rows].shape) for x in figures]
        parts.append(_chosen(aim, traffic, rows, replicas, able[rows], every, need, prices, legal))
    return joined(parts)


def _chosen(aim: Aim, traffic: Traffic, rows: np.ndarray, replicas: np.ndarray, able: np.ndarray,
            figures: list[np.ndarray], need: float, prices: Prices, legal: np.ndarray) -> Plans:  # fmt: skip
    """Of every server and its limits the best load: the lightest that carries ``need``, or the best that keeps all."""
    rate, ttft, late, tpot = figures
    off = worst(aim, traffic, late, tpot)
    if need:
        carries = able & (rate >= need)
        at, verdict = carries.argmax(-1), np.where(carries.any(-1), MET, TOO_SLOW)
        at = hopeful = np.where(verdict == MET, at, np.where(able, rate, -1.0).argmax(-1))
    else:
        at = best_load(aim, traffic, able, off, rate, ttft, tpot)
        hopeful = best_load(aim, traffic, able, off, rate, ttft, tpot, SLACK)
        verdict = np.full(at.shape, MET)
    verdict = np.where(able.any(-1), verdict, NO_ROOM)

    def pick(values: np.ndarray, at: np.ndarray = at) -> np.ndarray:
        return np.take_along_axis(values, at[..., None], -1)[..., 0]

    miss = pick(off)
    verdict = np.where((verdict == MET) & (miss > SLACK), MISSES, verdict)
    v, t, s = (index.ravel() for index in np.indices(at.shape))
    carried = [np.where(verdict <= MISSES, need, pick(rate, n)) if need else pick(rate, n) for n in (at, hopeful)]
    keep = np.broadcast_to(legal[None], at.shape).ravel()
    many, server = replicas[v], rows[v]
    nobody = np.full(len(v), -1)
    seen = [*(one.ravel() * many for one in carried), *(pick(figure).ravel() for figure in (ttft, late, tpot))]
    columns = [server, many, nobody, 0 * nobody, t, s, at.ravel(), many * prices.gpus[server], *seen, verdict.ravel(),
               miss.ravel()]  # fmt: skip
    return Plans(*columns).at(keep)


def value(plans: Plans, prices: Prices, space: Space, traffic: Traffic, aim: Aim) -> np.ndarray:
    """What the objective makes of plans: the more the better. Without a rate, GPUs that stay idle count."""
    tokens = plans.rate * traffic.output_len
    if aim.objective == "latency":
        found: np.ndarray = -(plans.ttft + (traffic.output_len - 1) * plans.tpot)
    elif aim.objective == "throughput":
        found = tokens / (plans.gpus if traffic.rate else space.num_gpus)
    else:
        figure = "price_per_hour" if aim.objective == "cost" else "power"
        each = np.array([getattr(server.asked.device, figure) for server in prices.servers])[plans.first]
        found = -plans.gpus * each / np.maximum(tokens, 1e-12)
    return found


def order(plans: Plans, values: np.ndarray, prices: Prices) -> np.ndarray:
    """Best first; of those alike fewer GPUs, then one kind of server, faster answers, the engine's own limits."""
    engine = prices.servers[0].asked.engine
    away = np.abs(np.log2(prices.budgets[plans.budget] / engine.max_num_batched_tokens))
    answer = plans.ttft + (prices.load.answers) * plans.tpot
    keys = (-prices.sequences[plans.seqs], away, answer, plans.second >= 0, plans.gpus, -values)
    found: np.ndarray = np.lexsort(keys)
    return found
