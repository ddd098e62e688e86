"""The two modes of deployment: aggregated and disaggregated plans.

Aggregated: replicas of one server, each of which does prefill and decode. Disaggregated: a pool of servers for prefill,
a pool for decode, and KV caches that go from one to the other. A pair is two servers of one kind (GPU, precisions)
without pipeline stages, each in some number. A prefill server that is slower in every respect than another on as many
GPUs can be in no better plan: its pairs are counted, not estimated.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..base.pareto import undominated
from ..inference.latency import frontend_seconds
from .plan_table import SLACK, LoadMetrics, Plans, Status, concatenated, slo_ratio
from .server_table import ServerTable
from .space import Problem
from .steady_state import even_arrivals, mean_wait, wait_at_share


def aggregated(servers: ServerTable, problem: Problem) -> Plans:
    """Replicas of every server under all limits: any number of them if a rate is given, else as many as there is room.

    Arrays are [server, token_budget, seqs, load]; of the loads every plan keeps one.
    """
    rate = problem.traffic.request_rate
    max_replicas = problem.space.num_gpus // servers.gpus
    if rate is None:
        return _with_replicas(np.arange(len(servers.servers)), max_replicas, servers, problem)
    parts = []
    for count in range(1, int(max_replicas.max(initial=1)) + 1):
        rows = np.flatnonzero(max_replicas >= count)
        parts.append(_with_replicas(rows, np.full(len(rows), count), servers, problem))
    return concatenated(parts)


def _with_replicas(rows: np.ndarray, replicas: np.ndarray, servers: ServerTable, problem: Problem) -> Plans:
    """Plans of some servers (``rows`` of the table) in these numbers of replicas: one row per token budget and seqs."""
    rate, legal = problem.traffic.request_rate, _legal_limits(servers)
    metrics = _load_metrics(rows, replicas, servers, problem, legal)
    if rate is not None:
        rate_per_replica = rate / int(replicas[0]) if len(replicas) else 0.0
        load, status = _lightest_load(metrics, rate_per_replica)
        optimistic_load = load
    else:
        load = metrics.best_load(problem)
        optimistic_load = metrics.best_load(problem, SLACK)
        status = np.full(load.shape, Status.MEETS_SLO)
    status = np.where(metrics.served.any(-1), status, Status.NO_CAPACITY)

    def at_load(values: np.ndarray, load: np.ndarray = load) -> np.ndarray:
        return np.take_along_axis(values, load[..., None], -1)[..., 0]

    ratio = at_load(metrics.slo_ratio)
    status = np.where((status == Status.MEETS_SLO) & (ratio > SLACK), Status.MISSES_SLO, status)
    rates = [at_load(metrics.request_rate, index) for index in (load, optimistic_load)]
    if rate is not None:  # plans that carry the given rate are estimated at it
        rates = [np.where(status <= Status.MISSES_SLO, rate_per_replica, one) for one in rates]
    server, token_budget, seqs = (index.ravel() for index in np.indices(load.shape))
    count = replicas[server]
    return Plans(
        prefill_server=rows[server],
        replicas=count,
        decode_server=np.full(len(server), -1),
        decode_replicas=np.zeros(len(server), int),
        token_budget=token_budget,
        seqs=seqs,
        load=load.ravel(),
        gpus=count * servers.gpus[rows[server]],
        request_rate=rates[0].ravel() * count,
        optimistic_rate=rates[1].ravel() * count,
        ttft=at_load(metrics.ttft).ravel(),
        ttft_at_slo_share=at_load(metrics.ttft_at_slo_share).ravel(),
        tpot=at_load(metrics.tpot).ravel(),
        status=status.ravel(),
        slo_ratio=ratio.ravel(),
    ).at(np.broadcast_to(legal[None], load.shape).ravel())


def _legal_limits(servers: ServerTable) -> np.ndarray:
    """Limits that an engine accepts [token_budget, seqs]: in a mixed batch every sequence takes a token."""
    if servers.loads.mixed_batches:
        legal: np.ndarray = servers.max_num_seqs[None, :] <= servers.max_num_batched_tokens[:, None]
        return legal
    return np.ones((len(servers.max_num_batched_tokens), len(servers.max_num_seqs)), bool)


def _load_metrics(
    rows: np.ndarray, replicas: np.ndarray, servers: ServerTable, problem: Problem, legal: np.ndarray
) -> LoadMetrics:
    """Metrics of one replica of each server [server, token_budget, seqs, load].

    A round-robin router sends every n-th request to each of n ranks: their gaps vary less than those of a Poisson
    process (squared coefficient of variation 1/n), and the queue behind other prompts shrinks.
    """
    served = servers.fits[rows] & (servers.request_rate[rows] > 0)[:, :, None, :] & legal[None, :, :, None]
    ranks = np.array([servers.servers[row].layout.dp for row in rows.tolist()], int)
    scv = 1 / (replicas * ranks * problem.traffic.burstiness)
    utilization = servers.utilization[rows]  # [server, token_budget, load]
    wait = servers.queue_seconds[rows] * even_arrivals(utilization, scv[:, None, None])
    late = servers.base_ttft[rows] + wait * wait_at_share(utilization, problem.objective.goodput_share)

    def every_seqs(values: np.ndarray) -> np.ndarray:
        return np.broadcast_to(values[:, :, None, :], served.shape)

    ttft_at_slo_share, tpot = every_seqs(late), every_seqs(servers.tpot[rows])
    return LoadMetrics(
        served=served,
        request_rate=every_seqs(servers.request_rate[rows]),
        ttft=every_seqs(servers.base_ttft[rows] + wait),
        ttft_at_slo_share=ttft_at_slo_share,
        tpot=tpot,
        slo_ratio=slo_ratio(problem.objective, problem.traffic, ttft_at_slo_share, tpot),
    )


def _lightest_load(metrics: LoadMetrics, request_rate: float) -> tuple[np.ndarray, np.ndarray]:
    """Index of the lightest load that carries a rate, or of the highest rate where none does; and the status so far."""
    carries = metrics.served & (metrics.request_rate >= request_rate)
    status = np.where(carries.any(-1), Status.MEETS_SLO, Status.TOO_SLOW)
    most = np.where(metrics.served, metrics.request_rate, -1.0).argmax(-1)
    return np.where(carries.any(-1), carries.argmax(-1), most), status


# ------------------------------------------------------------------ disaggregated


class PrefillServer(NamedTuple):
    """A server of a prefill pool with its token budget."""

    server: int  # row of the server table
    token_budget: int  # index of max_num_batched_tokens
    gpus: int
    dp: int
    prefill_seconds: float  # of one prompt
    rate: float  # prompts/s at most
    kv_transfer_seconds: float

    @property
    def service_seconds(self) -> float:
        """Seconds between two prompts of one busy rank."""
        return self.dp / self.rate

    def wait_for_step(self, request_rate: Any, share: float) -> tuple[Any, Any]:
        """Seconds until the step under way ends, where ranks step together: the mean, and what a share of prompts keep.

        ``request_rate``: of one server. A prompt that comes while another rank computes one waits for the rest of it,
        evenly between nothing and all; so does every prompt, once there is always one under way.
        """
        if self.dp == 1:
            return 0.0, 0.0
        busy = np.clip(request_rate * self.service_seconds, 1e-9, 1.0)
        return busy * self.service_seconds / 2, self.service_seconds * np.maximum(1 - (1 - share) / busy, 0)


def disaggregated(servers: ServerTable, problem: Problem) -> tuple[Plans | None, int]:
    """The plans with an undominated prefill server (None if there are none), and the number of all plans."""
    parts: list[Plans] = []
    count = 0
    for kind in dict.fromkeys(server.kind for server in servers.servers):
        members = [n for n, one in enumerate(servers.servers) if one.kind == kind and one.can_transfer]
        if not members:
            continue
        decode_rows = np.array([n for n in members if servers.decode_rate[n].max() > 0], int)
        options = [(n, budget) for n in members for budget in range(len(servers.max_num_batched_tokens))]
        sizes = np.array([servers.gpus[n] for n, _ in options])[:, None], servers.gpus[decode_rows][None, :]
        count += int(_count_pairs(problem, *sizes).sum())
        for prefill in _undominated_prefill(servers, options):
            plans = _pairs_with(prefill, decode_rows, servers, problem)
            if plans is not None:
                parts.append(plans)
    return (concatenated(parts) if parts else None), count


def _count_pairs(problem: Problem, prefill_gpus: np.ndarray, decode_gpus: np.ndarray) -> np.ndarray:
    """How many pairs of pools there are of servers of these sizes [prefill option, decode server].

    With a given rate any numbers of both that fit; else the decode servers that there is room for beside each number
    of prefill servers.
    """
    total = np.zeros(np.broadcast_shapes(prefill_gpus.shape, decode_gpus.shape), int)
    for replicas in range(1, problem.space.num_gpus + 1):
        room = np.maximum(problem.space.num_gpus - replicas * prefill_gpus, 0) // decode_gpus
        total += room if problem.traffic.request_rate else (room > 0).astype(int)
    return total


def _undominated_prefill(servers: ServerTable, options: list[tuple[int, int]]) -> list[PrefillServer]:
    """Prefill servers that no other on as many GPUs beats in seconds, rate and KV transfer alike."""
    candidates: list[PrefillServer] = []
    for row, budget in options:
        dp = servers.servers[row].layout.dp
        transfer = float(servers.kv_transfer_seconds[row])
        transfer_rate = dp / transfer if transfer else np.inf  # a rank sends one KV cache at a time
        candidates.append(
            PrefillServer(
                server=row,
                token_budget=budget,
                gpus=int(servers.gpus[row]),
                dp=dp,
                prefill_seconds=float(servers.prefill_seconds[row, budget]),
                rate=min(float(servers.prefill_rate[row, budget]), transfer_rate),
                kv_transfer_seconds=transfer,
            )
        )
    costs = np.array(
        [(c.prefill_seconds, -c.rate, c.kv_transfer_seconds, c.service_seconds, c.dp > 1) for c in candidates], float
    )
    return [candidates[n] for n in undominated(costs, np.array([c.gpus for c in candidates]))]


class _DecodeLoads(NamedTuple):
    """What the decode pool does: all arrays [prefill replicas, decode server, load or decode replicas]."""

    replicas: np.ndarray
    load: np.ndarray  # index of the load of each server
    request_rate: np.ndarray  # of the whole pool
    tpot: np.ndarray
    possible: np.ndarray  # there is room for so many, and they carry the rate


def _decode_at_rate(room: np.ndarray, decode_rows: np.ndarray, servers: ServerTable, rate: float) -> _DecodeLoads:
    """Decode pools for a given rate: any number of servers, each at the lightest load that carries its part."""
    decode_rate, decode_tpot = servers.decode_rate[decode_rows], servers.decode_tpot[decode_rows]  # [server, load]
    replicas = np.arange(1, max(int(room.max()), 1) + 1)
    carries = decode_rate[:, :, None] >= rate / replicas  # [server, load, replicas]
    possible = carries.any(1)[None] & (replicas <= room[:, :, None])
    load = np.where(carries.any(1), carries.argmax(1), decode_rate.argmax(1)[:, None])
    load = np.broadcast_to(load, possible.shape)
    return _DecodeLoads(
        replicas=np.broadcast_to(replicas, possible.shape),
        load=load,
        request_rate=np.full(possible.shape, rate),
        tpot=decode_tpot[np.arange(len(decode_rows))[None, :, None], load],
        possible=possible,
    )


def _decode_at_all_loads(room: np.ndarray, decode_rows: np.ndarray, servers: ServerTable) -> _DecodeLoads:
    """Decode pools without a given rate: as many servers as there is room for, at every load."""
    decode_rate, decode_tpot = servers.decode_rate[decode_rows], servers.decode_tpot[decode_rows]  # [server, load]
    replicas = np.broadcast_to(room[:, :, None], (*room.shape, decode_tpot.shape[1]))
    request_rate = replicas * decode_rate[None]
    return _DecodeLoads(
        replicas=replicas,
        load=np.broadcast_to(np.arange(decode_tpot.shape[1]), request_rate.shape),
        request_rate=request_rate,
        tpot=np.broadcast_to(decode_tpot[None], request_rate.shape),
        possible=(replicas > 0) & (request_rate > 0),
    )


def _pairs_with(
    prefill: PrefillServer, decode_rows: np.ndarray, servers: ServerTable, problem: Problem
) -> Plans | None:
    """All plans with a prefill server: [prefill replicas, decode server, and with a rate decode replicas]."""
    num_gpus, rate = problem.space.num_gpus, problem.traffic.request_rate
    sizes = servers.gpus[decode_rows]
    replicas = np.arange(1, (num_gpus - int(sizes.min(initial=num_gpus))) // prefill.gpus + 1)
    if not len(replicas) or not len(decode_rows):
        return None
    room = np.maximum(num_gpus - replicas[:, None] * prefill.gpus, 0) // sizes[None, :]
    if rate:
        decode = _decode_at_rate(room, decode_rows, servers, rate)
    else:
        decode = _decode_at_all_loads(room, decode_rows, servers)
    metrics = _pair_metrics(prefill, replicas, decode, decode_rows, servers, problem)
    kept = metrics.served & (metrics.slo_ratio <= SLACK)
    infeasible = np.where(
        ~decode.possible, Status.NO_CAPACITY, np.where(~metrics.served, Status.TOO_SLOW, Status.MISSES_SLO)
    )
    columns: dict[str, Any] = {
        "decode_replicas": decode.replicas,
        "load": decode.load,
        "request_rate": metrics.request_rate,
        "optimistic_rate": metrics.request_rate,
        "ttft": metrics.ttft,
        "ttft_at_slo_share": metrics.ttft_at_slo_share,
        "tpot": metrics.tpot,
        "status": np.where(kept, Status.MEETS_SLO, infeasible),
        "slo_ratio": metrics.slo_ratio,
    }
    if not rate:
        columns = _at_best_load(columns, metrics, problem)
    i, j, _ = np.indices(columns["status"].shape)
    prefill_replicas, decode_server = replicas[i.ravel()], j.ravel()
    decode_replicas = columns["decode_replicas"].ravel()
    plans = Plans(
        prefill_server=np.full(i.size, prefill.server),
        replicas=prefill_replicas,
        decode_server=decode_rows[decode_server],
        token_budget=np.full(i.size, prefill.token_budget),
        seqs=np.full(i.size, len(servers.max_num_seqs) - 1),
        gpus=prefill_replicas * prefill.gpus + decode_replicas * sizes[decode_server],
        **{name: column.ravel() for name, column in columns.items()},
    )
    return plans.at((decode_replicas > 0) & (plans.gpus <= num_gpus))


def _at_best_load(columns: dict[str, Any], metrics: LoadMetrics, problem: Problem) -> dict[str, Any]:
    """The columns at the best load of each pair, the last axis shrunk to 1; the optimistic rate at its own."""
    shape = metrics.request_rate.shape
    best = metrics.best_load(problem)[..., None]
    optimistic = metrics.best_load(problem, SLACK)[..., None]
    return {
        name: np.take_along_axis(np.broadcast_to(column, shape), optimistic if name == "optimistic_rate" else best, -1)
        for name, column in columns.items()
    }


def _pair_metrics(
    prefill: PrefillServer,
    replicas: np.ndarray,
    decode: _DecodeLoads,
    decode_rows: np.ndarray,
    servers: ServerTable,
    problem: Problem,
) -> LoadMetrics:
    """Latencies of pairs: prompts queue for a rank of the prefill pool, as in G/D/1, and then pass to the decode pool.

    The first token comes with the prefill; TTFT here is of the first token that the decode pool sends: the transfer,
    the rest of the step under way (half of one, and with asynchronous scheduling the one that is planned), and a step.
    """
    traffic = problem.traffic
    server = servers.servers[prefill.server]
    utilization = decode.request_rate / (replicas[:, None, None] * prefill.rate)
    scv = 1 / (replicas[:, None, None] * prefill.dp * traffic.burstiness)
    queue = mean_wait(utilization) * prefill.service_seconds * even_arrivals(utilization, scv)
    steps_ahead = 1.5 if servers.servers[0].request.engine.async_scheduling else 0.5
    transfer = np.maximum(prefill.kv_transfer_seconds, servers.kv_transfer_seconds[decode_rows])[None, :, None]
    share = problem.objective.goodput_share
    step_wait, late_step = prefill.wait_for_step(decode.request_rate / replicas[:, None, None], share)
    base_ttft = (
        frontend_seconds(server.bind(), traffic.input_len)
        + prefill.prefill_seconds
        + transfer
        + (1 + steps_ahead) * decode.tpot
    )
    ttft_at_slo_share = base_ttft + late_step + queue * wait_at_share(utilization, share)
    return LoadMetrics(
        served=decode.possible & (utilization < 1),
        request_rate=decode.request_rate,
        ttft=base_ttft + step_wait + queue,
        ttft_at_slo_share=ttft_at_slo_share,
        tpot=decode.tpot,
        slo_ratio=slo_ratio(problem.objective, traffic, ttft_at_slo_share, decode.tpot),
    )
