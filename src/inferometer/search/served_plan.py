"""A plan that was found, as its servers are started: what they have in common, and the lines of a shell.

model = served_model("llama-3.1-8b", server, requests, pools, longest, {})
start_lines(launches(plan, model, bench))["vllm"]       # ['vllm serve …']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..base.input_file import is_piped
from ..inference.request import Request
from ..inference.speculation import HEADS
from ..specs.catalog import UNQUANTIZED, named_precision, plain_dtype
from ..specs.catalog import model as catalog_model
from ..specs.structs import Plan, Speculation
from .launch.processes import BENCH, SERVERS, Launch, launch_lines, process_lines, variables
from .launch.served_model import ServedModel, context_length
from .search_result import PoolSpec
from .space import Server


def served_model(
    name: str,
    server: Server,
    requests: Sequence[Request],
    pools: Sequence[PoolSpec],
    longest: int,
    kwargs: Mapping[str, Any],
) -> ServedModel:
    """What all servers of a plan have in common; ``kwargs`` are those of every request of a search."""
    request = server.request
    length = context_length(list(requests), longest, kwargs.get("max_model_len"))
    speculation, given = request.plan.speculation, kwargs.get("gpu_memory_utilization")
    hf_id = "MODEL" if is_piped(name) else name if "/" in name else request.hf_id or name
    return ServedModel(
        name=hf_id,
        gpus_per_node=request.plan.gpus_per_node,
        vendor=request.device.vendor,
        architecture=request.device.architecture,
        dtype=request.model.dtype,
        quantizations=_stored_precisions(server, name, hf_id),
        kv_cache_dtype=request.model.kv_cache_dtype,
        state_dtype=_state_dtype(kwargs.get("mamba_ssm_cache_dtype")),
        length_limit=length.limit,
        length_reason=length.reason,
        max_len=length.longest,
        speculation=_with_hf_id(speculation) if speculation is not None else None,
        speculative_head=_speculative_head(kwargs.get("speculative_config")),
        engines={
            (engine, pool.role): request.engine_here(engine, _with_layout(request.plan, pool))
            for engine in SERVERS
            for pool in pools
        },
        memory_shares={request.engine.name: given} if given is not None else {},
    )


def _state_dtype(given: str | None) -> str:
    """The engines' word for the format of recurrent states, '' where none was chosen: ``_state_dtype("bf16")``"""
    if given in (None, "auto"):
        return ""
    return {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}[plain_dtype(given)]


def _stored_precisions(server: Server, name: str, hf_id: str) -> tuple[str, ...]:
    """What the checkpoint on Hugging Face is quantised in; a catalogue's name may end in a precision that it lacks."""
    declared = {precision for precision in server.request.model.quantization.values() if precision not in UNQUANTIZED}
    if "/" not in name and named_precision(name) and not named_precision(hf_id):
        return ()
    if server.quantization_arg is None and server.request.plan.quantization not in UNQUANTIZED:
        declared.add(server.request.plan.quantization)
    return tuple(sorted(declared))


def _speculative_head(config: str | Mapping[str, Any] | None) -> str:
    """The kind of head that drafts, which a plan's speculation takes for any draft model: ``'eagle3'`` or ``''``"""
    given = msgspec.json.decode(config) if isinstance(config, str) else config or {}
    return str(given.get("method") or "") if given.get("method") in HEADS else ""


def _with_hf_id(speculation: Speculation) -> Speculation:
    """Speculation with its draft model's name on Hugging Face."""
    if not speculation.model or "/" in speculation.model:
        return speculation
    return msgspec.structs.replace(speculation, model=catalog_model(speculation.model).hf_id or speculation.model)


def start_lines(launches: dict[str, Launch]) -> dict[str, list[str]]:
    """Lines of a shell by engine, and those of the benchmark."""
    lines = {engine: launch_lines(launch) for engine, launch in launches.items()}
    if not launches:
        return {}
    first = next((launch for launch in launches.values() if not launch.refusals), next(iter(launches.values())))
    return {**lines, BENCH: process_lines(first.bench, variables(first))}


def _with_layout(plan: Plan, pool: PoolSpec) -> Plan:
    """A plan with the parallel sizes of a pool."""
    return msgspec.structs.replace(
        plan,
        tensor_parallel_size=pool.tensor_parallel_size,
        pipeline_parallel_size=pool.pipeline_parallel_size,
        data_parallel_size=pool.data_parallel_size,
    )
