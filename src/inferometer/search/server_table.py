"""Estimates of all servers, as arrays with the axes ``[server, token_budget, seqs, load]``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..costs.binding import BoundPlan
from ..serving.deployment import kv_transfer_seconds
from .kv_capacity import KVCapacity, Shortfall, kv_capacities
from .objective import Traffic
from .space import Problem, Server
from .steady_state import LoadGrid, SteadyState, load_grid, steady_states


class ServerTable(NamedTuple):
    """One row per server that holds a request. Seconds, requests/s."""

    servers: list[Server]
    loads: LoadGrid
    max_num_batched_tokens: np.ndarray  # [token_budget]
    max_num_seqs: np.ndarray  # [seqs]
    gpus: np.ndarray  # [server]
    decoding: np.ndarray  # [server, load] sequences that decode on a rank
    base_ttft: np.ndarray  # [server, token_budget, load] without queueing behind other prompts
    queue_seconds: np.ndarray  # [server, token_budget, load] that queueing, where a rank's arrivals are Poisson
    utilization: np.ndarray  # [server, token_budget, load] of the budget for prompts
    tpot: np.ndarray  # [server, token_budget, load]
    request_rate: np.ndarray  # [server, token_budget, load] of the whole server; 0 where prompts cannot keep up
    fits: np.ndarray  # [server, token_budget, seqs, load] whether memory and limits admit the load
    prefill_seconds: np.ndarray  # [server, token_budget] a prompt on a server of a prefill pool
    prefill_rate: np.ndarray  # [server, token_budget] prompts/s of such a server
    decode_tpot: np.ndarray  # [server, load] between two tokens on a server of a decode pool
    decode_rate: np.ndarray  # [server, load] requests/s of such a server, 0 where they do not fit
    kv_transfer_seconds: np.ndarray  # [server] of a prompt's KV cache over this side's links

    @property
    def points(self) -> int:
        """Loads of limits of servers that are estimated."""
        return int(self.request_rate.size * len(self.max_num_seqs))

    def served(self) -> np.ndarray:
        """Loads that some limit admits and prompts keep up with [server, token_budget, load]."""
        served: np.ndarray = self.fits.any(2) & (self.request_rate > 0)
        return served

    def per_device(self, figure: str) -> np.ndarray:
        """A figure of each server's GPU [server]: ``table.per_device("price_per_hour")``"""
        return np.array([getattr(server.request.device, figure) for server in self.servers])


def estimate_servers(
    servers: Sequence[Server], problem: Problem, progress: Callable[[int], None] | None = None
) -> tuple[ServerTable | None, list[Shortfall | None]]:
    """The table of all servers that hold a request (None if none does), and what each of the others lacks.

    Servers that differ in the depth of their pipeline only share the work.
    """
    space, traffic = problem.space, problem.traffic
    engine, plan = servers[0].request.engine, servers[0].request.plan
    loads = load_grid(traffic, engine, plan, space.max_num_batched_tokens, max(space.max_num_seqs))
    rows: dict[int, dict[str, Any]] = {}
    shortfalls: list[Shortfall | None] = [None] * len(servers)
    for done, members in enumerate(_families(servers)):
        bound_plans = [servers[number].bind() for number in members]
        capacities = kv_capacities(bound_plans, loads, traffic, space.max_num_seqs)
        fitting = [bound_plan for bound_plan, one in zip(bound_plans, capacities, strict=True) if one.shortfall is None]
        states = iter(steady_states(fitting, loads) if fitting else ())
        for number, bound_plan, capacity in zip(members, bound_plans, capacities, strict=True):
            shortfalls[number] = capacity.shortfall
            if capacity.shortfall is None:
                transfer = _kv_transfer_seconds(servers[number], bound_plan, traffic)
                row = _row(servers[number], capacity, next(states), space.max_num_seqs)
                rows[number] = {**row, "kv_transfer_seconds": transfer}
        if progress is not None:
            progress(done + 1)
    return (_table(servers, rows, loads, problem) if rows else None), shortfalls


def _table(
    servers: Sequence[Server], rows: dict[int, dict[str, Any]], loads: LoadGrid, problem: Problem
) -> ServerTable:
    """The rows of some servers by their number, stacked column by column in the servers' order."""
    numbers = sorted(rows)
    return ServerTable(
        servers=[servers[number] for number in numbers],
        loads=loads,
        max_num_batched_tokens=np.array(problem.space.max_num_batched_tokens),
        max_num_seqs=np.array(problem.space.max_num_seqs),
        gpus=np.array([servers[number].layout.gpus for number in numbers]),
        **{name: np.stack([rows[number][name] for number in numbers]) for name in rows[numbers[0]]},
    )


def _families(servers: Sequence[Server]) -> list[list[int]]:
    """Numbers of servers that differ in their pipeline depth only."""
    families: dict[tuple[object, ...], list[int]] = {}
    for number, server in enumerate(servers):
        tp, _, dp, ep = server.layout
        families.setdefault((server.kind, tp, dp, ep), []).append(number)
    return list(families.values())


def _row(
    server: Server, capacity: KVCapacity, state: SteadyState, max_num_seqs: tuple[int, ...]
) -> dict[str, np.ndarray]:
    """The columns of one server: a rank's steady state times its data-parallel ranks, and the loads that fit."""
    dp, seqs = server.layout.dp, np.array(max_num_seqs, float)
    decoding = state.decoding[None, None, :]
    fits = (decoding <= capacity.max_seqs[:, :, None]) & (decoding <= seqs[None, :, None])  # [token_budget, seqs, load]
    decode_fits = state.decoding <= min(capacity.decode_seqs, seqs.max())
    return {
        "decoding": state.decoding,
        "base_ttft": state.base_ttft,
        "queue_seconds": state.queue_seconds,
        "utilization": state.utilization,
        "tpot": state.tpot,
        "request_rate": state.request_rate * dp,
        "fits": fits,
        "prefill_seconds": state.prefill_seconds,
        "prefill_rate": state.prefill_rate * dp,
        "decode_tpot": state.decode_tpot,
        "decode_rate": state.decode_rate * dp * decode_fits,
    }


def _kv_transfer_seconds(server: Server, bound_plan: BoundPlan, traffic: Traffic) -> float:
    """Seconds that one side of a KV transfer needs, as the simulator has it; pipelines are not disaggregated."""
    if server.layout.pp > 1:
        return 0.0
    return kv_transfer_seconds(bound_plan, bound_plan, np.array([round(traffic.input_len)]))[0]
