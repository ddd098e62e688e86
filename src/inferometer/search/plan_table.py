"""Plans as columns: replicas of one server, or pools that read and answer, each at the load that suits it best.

Every plan is kept, also those that fail, with the figures that say why: nothing is dropped before it was looked at.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from .objective import Aim, Traffic
from .plan_simulation import Contender, Trial
from .search_result import Candidate, Figures, Pool
from .server_costs import Prices
from .space import Server, Space
from .steady_state import evenly, tail

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


def best_load(
    aim: Aim, traffic: Traffic, able: Any, off: Any, rate: Any, ttft: Any, tpot: Any, slack: float = 1.0
) -> Any:
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


def _chosen(
    aim: Aim,
    traffic: Traffic,
    rows: np.ndarray,
    replicas: np.ndarray,
    able: np.ndarray,
    figures: list[np.ndarray],
    need: float,
    prices: Prices,
    legal: np.ndarray,
) -> Plans:
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
    columns = [
        server,
        many,
        nobody,
        0 * nobody,
        t,
        s,
        at.ravel(),
        many * prices.gpus[server],
        *seen,
        verdict.ravel(),
        miss.ravel(),
    ]
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
        each = np.array([getattr(server.request.device, figure) for server in prices.servers])[plans.first]
        found = -plans.gpus * each / np.maximum(tokens, 1e-12)
    return found


def order(plans: Plans, values: np.ndarray, prices: Prices) -> np.ndarray:
    """Best first; of those alike fewer GPUs, then one kind of server, faster answers, the engine's own limits."""
    engine = prices.servers[0].request.engine
    away = np.abs(np.log2(prices.budgets[plans.budget] / engine.max_num_batched_tokens))
    answer = plans.ttft + (prices.load.answers) * plans.tpot
    keys = (-prices.sequences[plans.seqs], away, answer, plans.second >= 0, plans.gpus, -values)
    found: np.ndarray = np.lexsort(keys)
    return found


# ------------------------------------------------------------------ rows
# A row of the table of plans, as what people and simulations read.


class Book(NamedTuple):
    """Everything that the columns of plans refer to."""

    model: str
    space: Space
    traffic: Traffic
    aim: Aim
    prices: Prices
    plans: Plans

    def candidate(self, row: int) -> Candidate:
        """The plan of a row."""
        p, space = self.plans, self.space
        first, second = int(p.first[row]), int(p.second[row])
        pools = [self._pool("prefill" if second >= 0 else "both", first, row)]
        if second >= 0:
            pools.append(self._pool("decode", second, row))
        gpus = int(p.gpus[row])
        return Candidate(
            gpu=self.prices.servers[first].request.device.name,
            mode="disaggregated" if second >= 0 else "aggregated",
            pools=pools,
            gpus=gpus,
            idle_gpus=0 if self.traffic.rate else space.num_gpus - gpus,
            priced=self.figures(row, float(p.rate[row]), float(p.ttft[row]), float(p.tpot[row])),
        )

    def _pool(self, role: str, server: int, row: int) -> Pool:
        p, one = self.plans, self.prices.servers[server]
        tp, pp, dp, ep = one.layout
        plan = one.request.plan
        answers = role == "decode"
        return Pool(
            role=role,
            replicas=int((p.others if answers else p.replicas)[row]),
            tensor_parallel_size=tp,
            pipeline_parallel_size=pp,
            data_parallel_size=dp,
            enable_expert_parallel=ep,
            quantization=plan.quantization,
            kv_cache_dtype=plan.kv_cache_dtype,
            max_num_seqs=int(self.prices.sequences[p.seqs[row]]),
            max_num_batched_tokens=(
                _own(one, "max_num_batched_tokens") if answers else int(self.prices.budgets[p.budget[row]])
            ),
        )

    def figures(self, row: int, rate: float, ttft: float, tpot: float) -> Figures:
        """What a plan does at a rate, with these means in seconds."""
        tokens, gpus = rate * self.traffic.output_len, int(self.plans.gpus[row])
        device = self.prices.servers[int(self.plans.first[row])].request.device
        each = gpus / tokens if tokens else float("inf")  # device-seconds of a token
        return Figures(
            request_rate=rate,
            output_throughput=tokens,
            output_throughput_per_gpu=tokens / (gpus if self.traffic.rate else self.space.num_gpus),
            output_throughput_per_user=1 / tpot,
            ttft_ms=ttft * 1e3,
            tpot_ms=tpot * 1e3,
            e2el_ms=(ttft + (self.traffic.output_len - 1) * tpot) * 1e3,
            cost_per_million_output_tokens=each * device.price_per_hour / 3600 * 1e6 if device.price_per_hour else None,
            joules_per_output_token=each * device.power if device.power else None,
        )

    def simulated(self, row: int, trial: Trial) -> Figures | None:
        """The same from a simulation."""
        if not trial.tpot_ms:
            return None
        return self.figures(row, trial.request_rate, trial.ttft_ms["mean"] / 1e3, trial.tpot_ms["mean"] / 1e3)

    def contender(self, row: int) -> Contender:
        """The plan of a row, ready for the bench."""
        p, plan = self.plans, self.candidate(row)
        used = [int(p.first[row])] + ([int(p.second[row])] if p.second[row] >= 0 else [])
        pools = tuple(
            (pool.role, pool.replicas, self._words(self.prices.servers[n], pool))
            for pool, n in zip(plan.pools, used, strict=True)
        )
        return Contender(self.model, pools, float(p.rate[row]), plan.priced.e2el_ms / 1e3)

    def _words(self, server: Server, pool: Pool) -> dict[str, Any]:
        return {
            **self.space.words,
            **server.words(),
            "max_num_seqs": pool.max_num_seqs,
            "max_num_batched_tokens": pool.max_num_batched_tokens,
        }


def _own(server: Server, word: str) -> int:
    return int(getattr(server.request.plan, word))
