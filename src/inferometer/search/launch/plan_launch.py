"""A plan as a `Launch` of each engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from ...base.units import ceil_div, plural
from ..search_result import Candidate, PoolSpec
from .processes import SERVERS, SGLANG, TRTLLM, VLLM, Launch, Process
from .routers import Backend, router_process
from .served_model import ServedModel
from .sglang_server import sglang_server
from .trtllm_server import trtllm_refusals, trtllm_server
from .vllm_server import vllm_refusals, vllm_server

_SERVER: dict[str, Callable[[PoolSpec, ServedModel, int], dict[str, Any]]] = {
    VLLM: vllm_server,
    SGLANG: sglang_server,
    TRTLLM: trtllm_server,
}
_NAMES = {"both": "server", "prefill": "prefill", "decode": "decode"}
_SERVERS = {"both": "server", "prefill": "prefill server", "decode": "decode server"}


def launches(plan: Candidate, model: ServedModel, bench: Process, router: str = "round_robin") -> dict[str, Launch]:
    """A plan by engine: ``launches(plan, model, bench)["vllm"].processes[0].argv  # ['vllm', 'serve', …]``"""
    return {engine: _launch(engine, plan, model, bench, router) for engine in SERVERS}


def _launch(engine: str, plan: Candidate, model: ServedModel, bench: Process, policy: str) -> Launch:
    pool = plan.pools[0]  # all pools have the precisions of the first: they hand their caches on
    weights, label = model.weights(engine, pool), model.engine(engine, pool).label
    refusals = trtllm_refusals(plan) if engine == TRTLLM else []
    refusals += vllm_refusals(plan, model) if engine == VLLM else []
    refusals += [weights.refusal] if weights.refusal else []
    cache = model.cache_setting(engine, pool)
    if cache is None:
        version = model.engine(engine, pool).version
        refusals.append(
            f"{label} {version} has no KV cache in {pool.kv_cache_dtype}: search with another --kv-cache-dtype"
        )
    launch = Launch(
        engine=engine,
        version=model.engine(engine, pool).version,
        model=weights.model,
        vendor=model.vendor,
        architecture=model.architecture,
        processes=[],
        bench=bench,
        gpus_per_node=model.gpus_per_node,
        refusals=refusals,
    )
    if refusals:
        return launch
    servers = [_server(engine, pool, model) for pool in plan.pools]
    addresses = [
        Backend(server.name, f"${server.name.upper()}_{n}") for server in servers for n in range(server.replicas)
    ]
    router = router_process(engine, addresses, router=policy)
    notes = [note for note in (weights.note, cache.note if cache else "", model.length_reason) if note]
    processes = [*servers, *([router] if router is not None else [])]
    return msgspec.structs.replace(launch, processes=processes, notes=notes)


def _server(engine: str, pool: PoolSpec, model: ServedModel) -> Process:
    """One server of a pool, with a comment that says how many of them there are."""
    nodes = ceil_div(pool.gpus, model.gpus_per_node)
    gpus = plural(pool.gpus, "GPU")
    where = f"{gpus} on {nodes} nodes; run this on every node, with its NODE_RANK:" if nodes > 1 else gpus
    return Process(
        name=_NAMES[pool.role],
        engine=engine,
        replicas=pool.replicas,
        nodes=nodes,
        gpus=pool.gpus,
        gpus_per_node=ceil_div(pool.gpus, nodes),
        comment=f"{plural(pool.replicas, _SERVERS[pool.role])}, {where}{' each' if pool.replicas > 1 else ''}",
        **_SERVER[engine](pool, model, nodes),
    )
