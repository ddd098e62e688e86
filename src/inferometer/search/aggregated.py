"""Aggregated plans: replicas of one server, each of which does prefill and decode."""

from __future__ import annotations

import numpy as np

from .plan_table import SLACK, LoadMetrics, Plans, Status, concatenated, slo_ratio
from .server_table import ServerTable
from .space import Problem
from .steady_state import even_arrivals, wait_at_share


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
