"""Every server that could be started: layouts, precisions, GPU types; and why the others cannot.

A server is one engine on its own GPUs. A plan is one or more of them: identical replicas, or a pool for prefill and a
pool for decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import msgspec

from ..base import ranges
from ..base.errors import BadValue, check_int
from ..base.units import ceil_div
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan
from ..inference.request import Request, build_request
from ..inference.speculation import draft_reason
from ..inference.workload import refuse
from ..specs import catalog
from ..specs.structs import Hardware, Plan
from .objective import Objective, Traffic

MAX_NUM_BATCHED_TOKENS = (2048, 4096, 8192, 16384)  # tried beside the engine's own default
MAX_OFFLOADING_SIZE = 1_000_000  # GiB
_TIER_FLAGS = ("kv_tiers", "enable_hierarchical_cache", "kv_offloading_backend", "hicache_storage_backend")
MAX_NUM_SEQS = (32, 64, 128, 256, 512)


class Layout(NamedTuple):
    """Parallel sizes of one server; dp > 1 only where its ranks meet at the experts."""

    tp: int
    pp: int
    dp: int
    ep: bool

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        sizes = [f"{name}{size}" for name, size in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if size > 1]
        return "·".join([*(sizes or ["tp1"]), *(["ep"] if self.ep else [])])


def precision_label(quantization: str, kv_cache_dtype: str, kv_offloading_size: float = 0.0) -> str:
    """``fp8, KV bf16``; with KV blocks in CPU memory ``fp8, KV bf16 + 64 GiB``"""
    return f"{quantization}, KV {kv_cache_dtype}" + (f" + {kv_offloading_size:g} GiB" if kv_offloading_size else "")


class ServerKind(NamedTuple):
    """What servers that send KV caches to each other must have in common."""

    gpu: str
    quantization: str
    kv_cache_dtype: str
    kv_offloading_size: float = 0.0  # GiB


class Server(NamedTuple):
    """One engine that could be started."""

    gpu: str  # as it was given
    request: Request  # with the plan of its layout; limits of a step are still the engine's defaults
    layout: Layout
    quantization_arg: str | None = None  # as `build_request` takes it; None: the checkpoint's own
    kv_cache_dtype_arg: str = "auto"
    kv_offloading_size: float = 0.0  # GiB of CPU memory of a replica

    @property
    def kind(self) -> ServerKind:
        """GPU, precisions, and memory below the GPU's."""
        plan = self.request.plan
        return ServerKind(self.gpu, plan.quantization, plan.kv_cache_dtype, self.kv_offloading_size)

    @property
    def can_transfer(self) -> bool:
        """Whether it may send or get KV caches: it has a link to do so, and is not a pipeline.

        Nor has it a tier below the GPU: vLLM has one connector for either (v0.25.1 vllm/config/vllm.py,
        `_post_init_kv_transfer_config`).
        """
        has_link = parallelism.network_link(self.request.device) is not None
        return self.layout.pp == 1 and has_link and not self.kv_offloading_size

    def request_kwargs(self) -> dict[str, Any]:
        """The server as keywords of `build_request`, but for the limits of a step."""
        return {
            "gpu": self.gpu,
            "tensor_parallel_size": self.layout.tp,
            "pipeline_parallel_size": self.layout.pp,
            "data_parallel_size": self.layout.dp,
            "enable_expert_parallel": self.layout.ep,
            "quantization": self.quantization_arg,
            "kv_cache_dtype": self.kv_cache_dtype_arg,
            "kv_offloading_size": self.kv_offloading_size or None,
        }

    def bind(self) -> BoundPlan:
        """Ready for estimates, for batches of sequences of all lengths."""
        bound_plan = self.request.bind()
        return bound_plan._replace(env={**bound_plan.env, "uniform_lengths": 0.0})


class RejectedServer(NamedTuple):
    """A server that cannot be started: an illegal layout, or one that does not fit in memory."""

    server: Server
    reason: str
    needed_bytes: float = 0.0  # on its fullest GPU, where that is the reason


class Space(NamedTuple):
    """The axes that are searched."""

    gpus: tuple[str, ...]
    num_gpus: int
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    ep: tuple[bool, ...]
    quantizations: tuple[str | None, ...]
    kv_cache_dtypes: tuple[str, ...]
    kv_offloading_sizes: tuple[float, ...]  # GiB
    max_num_batched_tokens: tuple[int, ...]
    max_num_seqs: tuple[int, ...]
    modes: tuple[str, ...]  # aggregated, disaggregated
    request_kwargs: dict[str, Any]  # of `build_request`, the same for all servers

    def to_dict(self) -> dict[str, Any]:
        """The axes as the result shows them."""
        return {
            "gpu": list(self.gpus),
            "num_gpus": self.num_gpus,
            "tensor_parallel_size": list(self.tp),
            "pipeline_parallel_size": list(self.pp),
            "data_parallel_size": list(self.dp),
            "enable_expert_parallel": list(self.ep),
            "quantization": [q or "as it is" for q in self.quantizations],
            "kv_cache_dtype": list(self.kv_cache_dtypes),
            "kv_offloading_size": list(self.kv_offloading_sizes),
            "max_num_batched_tokens": list(self.max_num_batched_tokens),
            "max_num_seqs": list(self.max_num_seqs),
            "mode": list(self.modes),
        }


class Problem(NamedTuple):
    """What all parts of a search need to know: which servers may be used, for which requests, to which end."""

    model: str
    space: Space
    traffic: Traffic
    objective: Objective


def build_space(
    model: str,
    gpus: Sequence[str],
    num_gpus: int,
    *,
    modes: tuple[str, ...],
    tensor_parallel_size: Any = None,
    pipeline_parallel_size: Any = None,
    data_parallel_size: Any = None,
    enable_expert_parallel: Any = None,
    quantization: Any = None,
    kv_cache_dtype: Any = None,
    kv_offloading_size: Any = None,
    max_num_batched_tokens: Any = None,
    max_num_seqs: Any = None,
    refused: tuple[str, ...] = _TIER_FLAGS,
    **request_kwargs: Any,
) -> Space:
    """The axes: the values that are given, or those worth trying. Other keywords go to every `build_request`.

    ``build_space("llama-3.1-8b", ["h200"], 4, modes=("aggregated",), tensor_parallel_size=[1, 2]).tp  # (1, 2)``
    """
    count = check_int("num_gpus", num_gpus, most=1024)
    refuse("search tries `kv_offloading_size`: leave out {}", {name: request_kwargs.get(name) for name in refused})
    first = build_request(model, gpus[0], **request_kwargs)
    if first.model.kind != "decoder":
        raise BadValue(f"{first.model.name} is a {first.model.kind} model: only a decoder generates tokens")
    moe = any(op.kind == "moe" for block in first.model.blocks for op in block.ops)
    tp = _sizes("tensor_parallel_size", tensor_parallel_size, count)
    pp = _sizes("pipeline_parallel_size", pipeline_parallel_size, count)
    dp = _sizes("data_parallel_size", data_parallel_size, count)
    if data_parallel_size is None and not moe:
        dp = (1,)  # data-parallel ranks of a dense model never communicate: they are servers of their own
    ep: tuple[bool, ...] = (False, True) if moe else (False,)
    if enable_expert_parallel is not None:
        ep = ranges.switches("`enable_expert_parallel`", enable_expert_parallel)
    engine = first.engine
    token_budgets = (*MAX_NUM_BATCHED_TOKENS, engine.max_num_batched_tokens)
    return Space(
        gpus=tuple(gpus),
        num_gpus=count,
        tp=tp,
        pp=pp,
        dp=dp,
        ep=ep,
        max_num_batched_tokens=_limits("max_num_batched_tokens", max_num_batched_tokens, token_budgets),
        max_num_seqs=_limits("max_num_seqs", max_num_seqs, (*MAX_NUM_SEQS, engine.max_num_seqs)),
        quantizations=_quantizations(first, gpus, quantization),
        kv_cache_dtypes=_kv_cache_dtypes(first, gpus, kv_cache_dtype),
        kv_offloading_sizes=_offloading_sizes(kv_offloading_size),
        modes=modes,
        request_kwargs=request_kwargs,
    )


def cluster_size(gpus: Sequence[str], num_gpus: int | None, nodes: int | None, given: Any) -> tuple[int, int | None]:
    """How many GPUs there are, as given, or those of the nodes, or of one node of the GPU's default size; and how many
    of them a node has, where that is said: ``cluster_size(["h200"], None, 2, None)  # (16, 8)``"""
    per_node = (
        catalog.hardware(gpus[0]).gpus_per_node if given is None else check_int("gpus_per_node", given, most=65536)
    )
    if nodes is None:
        return (per_node if num_gpus is None else num_gpus), given
    most = check_int("nodes", nodes, most=10**5) * per_node
    if num_gpus is not None and num_gpus > most:
        raise BadValue(f"`num_gpus` {num_gpus:,} exceeds what {nodes:,} nodes of {per_node} GPUs have: {most:,}")
    return (most if num_gpus is None else num_gpus), per_node


def sizes_of(num_gpus: int) -> tuple[int, ...]:
    """Sizes of an axis that are tried: powers of two, and what divides the GPUs: ``sizes_of(12)  # 1 2 3 4 6 8 12``"""
    return tuple(n for n in range(1, num_gpus + 1) if n & (n - 1) == 0 or num_gpus % n == 0)


def _sizes(name: str, given: Any, num_gpus: int) -> tuple[int, ...]:
    """Sizes of one parallel axis: those given, or all that may be useful."""
    if given is None:
        return sizes_of(num_gpus)
    return tuple(check_int(name, n, most=num_gpus) for n in ranges.numbers(f"`{name}`", given, whole=True))


def _limits(name: str, given: Any, default: tuple[int, ...]) -> tuple[int, ...]:
    """Values of one limit of the engine's step, rising."""
    if given is None:
        return tuple(sorted(set(default)))
    return tuple(sorted(check_int(name, n) for n in ranges.numbers(f"`{name}`", given, whole=True)))


def _multiplies_fp8(gpus: Sequence[str]) -> bool:
    return any("fp8" in catalog.hardware(gpu).flops for gpu in gpus)


def _quantizations(request: Request, gpus: Sequence[str], given: Any) -> tuple[str | None, ...]:
    """Precisions of weights: those given; else the checkpoint's own, and fp8 where that is plain and a GPU has it."""
    if given is not None:
        names = ranges.choices("`quantization`", given)
        return tuple(dict.fromkeys(catalog.precision(name, "quantization").name for name in names))
    unquantized = precision.summary(request.roles, request.plan.dtype) in catalog.UNQUANTIZED
    return (None, "fp8") if unquantized and _multiplies_fp8(gpus) else (None,)


def _kv_cache_dtypes(request: Request, gpus: Sequence[str], given: Any) -> tuple[str, ...]:
    """Precisions of the KV cache: those given; else the model's own, and fp8 if a GPU has it."""
    if given is not None:
        return ranges.choices("`kv_cache_dtype`", given)
    return ("auto", "fp8") if _multiplies_fp8(gpus) and request.plan.kv_cache_dtype != "fp8" else ("auto",)


def _offloading_sizes(given: Any) -> tuple[float, ...]:
    """GiB of CPU memory that are tried, the largest first: of plans with one estimate it is simulated first."""
    if given is None:
        return (0.0,)
    sizes = ranges.numbers("`kv_offloading_size`", given, whole=False)
    if min(sizes) < 0 or max(sizes) > MAX_OFFLOADING_SIZE:
        raise BadValue(
            f"`kv_offloading_size` must be sizes from 0 to {MAX_OFFLOADING_SIZE:,} GiB", field="kv_offloading_size"
        )
    return tuple(sorted(set(map(float, sizes)), reverse=True))


def layouts(space: Space) -> list[Layout]:
    """All that fit into the GPUs, legal or not; experts are spread only where there are ranks to spread them over.

    Ranks that meet at the experts are not combined with pipeline stages unless the user gives stages: the simulator
    lets the ranks of a pipeline run apart, which flatters them.
    """
    return [
        Layout(tp, pp, dp, ep)
        for tp in space.tp
        for pp in space.pp
        for dp in space.dp
        for ep in space.ep
        if tp * pp * dp <= space.num_gpus
        and (not ep or tp * dp > 1 or space.ep == (True,))
        and (pp == 1 or dp == 1 or 1 not in space.pp)
    ]


def servers(space: Space, model: str) -> tuple[list[Server], list[RejectedServer]]:
    """The legal servers of a space, and the illegal ones: ``legal, illegal = servers(space, "llama-3.1-8b")``"""
    legal: list[Server] = []
    illegal: list[RejectedServer] = []
    for server in _server_kinds(space, model):
        device = server.request.device
        no_fp8 = _lacks_fp8(device, server.quantization_arg, server.kv_cache_dtype_arg)
        for layout in layouts(space):
            plan = _plan_of(server.request, layout, space.request_kwargs.get("gpus_per_node"))
            one = server._replace(request=server.request.replan(plan), layout=layout)
            reason = no_fp8 or parallelism.illegal_reason(one.request.model, plan, device)
            if not reason and plan.speculation is not None:
                reason = draft_reason(one.request.bind())
            if reason:
                illegal.append(RejectedServer(one, reason))
            else:
                legal.append(one)
    return legal, illegal


def _server_kinds(space: Space, model: str) -> Iterator[Server]:
    """One server of every GPU and precision, on one GPU. All share one model, so that its blocks are cached once."""
    network = None
    for gpu in space.gpus:
        seen: set[ServerKind] = set()
        for quantization in space.quantizations:
            for cache, size in product(space.kv_cache_dtypes, space.kv_offloading_sizes):
                kwargs = {"quantization": quantization, "kv_cache_dtype": cache, **space.request_kwargs}
                request = build_request(model, gpu, kv_offloading_size=size or None, **kwargs)
                network = network or request.model
                request = request._replace(model=network)
                server = Server(gpu, request, Layout(1, 1, 1, False), quantization, cache, size)
                if server.kind not in seen:  # the checkpoint's own precision may have been given by name, too
                    seen.add(server.kind)
                    yield server


def _lacks_fp8(device: Hardware, quantization: str | None, kv_cache_dtype: str) -> str:
    """Why a device is not tried with fp8, which it would have to convert; empty if it is."""
    for name, what in ((quantization, "weights"), (kv_cache_dtype, "KV cache")):
        if name == "fp8" and "fp8" not in device.flops:
            return f"{device.name} has no fp8 units: fp8 {what} would have to be converted"
    return ""


def _plan_of(request: Request, layout: Layout, gpus_per_node: int | None) -> Plan:
    """The plan of a layout, on as many nodes as it needs."""
    per_node = gpus_per_node or parallelism.gpus_per_nvlink_domain(request.device, layout.gpus)
    return msgspec.structs.replace(
        request.plan,
        tensor_parallel_size=layout.tp,
        pipeline_parallel_size=layout.pp,
        data_parallel_size=layout.dp,
        enable_expert_parallel=layout.ep,
        gpus_per_node=per_node,
        nodes=ceil_div(layout.gpus, per_node),
    )
