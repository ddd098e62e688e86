"""Tiers below the GPU's KV cache: what the flags of vLLM, SGLang and our own say, with figures from data/kv_tiers.toml.

    offload = parse_kv_offload(args, engine, device, gpus_per_node=8)
    offload.tiers[0].name, offload.tiers[0].size        # 'cpu', 68719476736.0

vLLM's ``kv_offloading_size`` is in GiB over all ranks of an engine (v0.25.1 vllm/config/cache.py:182; a data-parallel
rank is an engine of its own), and every rank's copy of a block counts (vllm/v1/kv_offload/cpu/spec.py). SGLang's
``hicache_size`` is in GB for each rank, its ``hicache_ratio`` a multiple of the GPU's cache, and its storage backend
comes below (python/sglang/srt/server_args.py at cce0a12).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from ..base.cache import cache_by_identity
from ..base.errors import BadValue, UnknownName, abbreviate, about
from ..base.symbols import Value
from ..costs import parallelism
from ..costs.binding import BoundPlan
from ..network.graph import Block
from ..specs.arguments import flag
from ..specs.catalog import constants
from ..specs.structs import Engine, Hardware, KVOffload, KVTier, Spec
from .cache_size import replica_cache_bytes
from .report import TierRow
from .workload import BatchShape

if TYPE_CHECKING:
    from ..specs.plan_args import PlanArgs

TIERS = ("cpu", "disk", "shared")  # nearest first
GIB = 2**30
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
BACKENDS = ("native", "lmcache")
STORAGE = {"file": "disk", "mooncake": "shared", "hf3fs": "shared", "nixl": "shared", "aibrix": "shared"}
_KEYS = {"size": GIB, "read": 1e9, "write": 1e9, "latency": 1.0, "concurrency": 1.0}  # key -> SI units of one
_SGLANG = (
    "enable_hierarchical_cache",
    "hicache_ratio",
    "hicache_size",
    "hicache_write_policy",
    "hicache_storage_backend",
)
_RATIO = 2.0  # SGLang's default, python/sglang/srt/server_args.py:7439 at cce0a12
_PAGE_COPIES = ("vllm",)  # a copy for each block of each layer: v0.25.1 vllm/v1/kv_offload/cpu/gpu_worker.py
_PROMPT_ONLY = ("vllm",)  # offload_prompt_only is true by default: v0.25.1 vllm/v1/kv_offload/base.py:521


class TierData(Spec, frozen=True, kw_only=True):
    """A tier in data/kv_tiers.toml: bandwidths of its own, or a share of one of the device's links."""

    label: str
    per: Literal["gpu", "node"]  # what has the bandwidth
    read_bandwidth: float = 0.0  # B/s
    write_bandwidth: float = 0.0
    link_share: float = 0.0  # of the device's link to its host
    network_share: float = 0.0  # of its link to other nodes
    latency: float  # s of a transfer
    page_latency: float = 0.0  # s for each page, where the engine copies page by page
    triton_below: float = 0.0  # bytes of a page
    concurrency: int  # transfers at once
    duplex: bool
    source: dict[str, str]


class TierTable(Spec, frozen=True, kw_only=True):
    """data/kv_tiers.toml."""

    cpu: TierData
    disk: TierData
    shared: TierData


@functools.cache
def tier_data(name: str) -> TierData:
    """The figures of a tier: ``tier_data("disk").read_bandwidth  # 6.8e9``"""
    data: TierData = getattr(constants("kv_tiers", TierTable), name)
    return data


def parse_kv_offload(args: PlanArgs, engine: Engine, device: Hardware, gpus_per_node: int) -> KVOffload | None:
    """What the arguments of a plan say; None where blocks stay on the GPU."""
    if not any(
        (args.kv_offloading_size, args.enable_hierarchical_cache, args.hicache_size, args.kv_tiers)
    ) and not _stray(args):
        return None
    _check(args, engine)
    figures = parse_kv_tiers(args.kv_tiers)
    if args.kv_offloading_size is not None:
        figures.setdefault("cpu", {})["size"] = args.kv_offloading_size * GIB
    if args.enable_hierarchical_cache:
        ratio = _RATIO if args.hicache_ratio is None else args.hicache_ratio
        size = {"gpu_ratio": ratio} if not args.hicache_size else {"size_per_gpu": args.hicache_size * 1e9}
        figures["cpu"] = {**size, **figures.get("cpu", {})}
        if args.hicache_storage_backend:
            figures.setdefault(STORAGE[args.hicache_storage_backend], {})
    tiers = [_tier(name, figures[name], engine, device, gpus_per_node) for name in TIERS if name in figures]
    tiers = [tier for tier in tiers if tier.size or tier.size_per_gpu or tier.gpu_ratio]
    if not tiers:
        _prefix_tier(args.prefix_tier, [])
        return None
    return KVOffload(
        tiers=tuple(tiers),
        prefix_tier=_prefix_tier(args.prefix_tier, tiers),
        write_policy=args.hicache_write_policy or "write_through",  # type: ignore[arg-type]
        backend=args.kv_offloading_backend or args.hicache_storage_backend or "",
        prompt_only=engine.name in _PROMPT_ONLY,
    )


def _stray(args: PlanArgs) -> bool:
    """Whether flags were given that only make sense with others."""
    return any(
        value is not None
        for value in (
            args.kv_offloading_backend,
            args.hicache_ratio,
            args.hicache_write_policy,
            args.hicache_storage_backend,
            args.prefix_tier,
        )
    )


def _prefix_tier(name: str | None, tiers: list[KVTier]) -> str:
    """The tier that a cached prefix comes from, '' for the GPU."""
    if name is None or name == "gpu":
        return ""
    if name not in TIERS:
        raise UnknownName("`prefix_tier`", name, ("gpu", *TIERS), field="prefix_tier")
    if name not in [tier.name for tier in tiers]:
        needed = "`kv_offloading_size`" if name == "cpu" else f"`kv_tiers` {name}:size=…"
        raise BadValue(f"`prefix_tier` {name} needs that tier: give {needed}", field="prefix_tier")
    return name


@cache_by_identity(64)
def _layers_with_cache(blocks: tuple[Block, ...]) -> int:
    """Layers that keep a cache of tokens."""
    return sum(block.count for block in blocks for op in block.ops if op.cache is not None)


def block_bytes(bound_plan: BoundPlan, tokens: int = 0) -> float:
    """Bytes of a KV block on all GPUs of a replica, of sequences of so many tokens: ``block_bytes(bound_plan)``

    Of windows and states it is the share of a block in a sequence of that length.
    """
    length = max(tokens, bound_plan.plan.block_size)
    return float(replica_cache_bytes(bound_plan, length)) * bound_plan.plan.block_size / length


def link_bandwidth(bound_plan: BoundPlan, tier: KVTier, *, write: bool = False) -> float:
    """B/s at which a replica's blocks cross the link of a tier: ``link_bandwidth(bound_plan, tier)``

    Where each layer's part of a block is a copy of its own, every copy takes a little longer than its bytes do.
    """
    plan = bound_plan.plan
    gpus = plan.gpus // plan.data_parallel_size
    nominal = tier.write_bandwidth if write else tier.read_bandwidth
    pages = _layers_with_cache(bound_plan.model.blocks) / plan.pipeline_parallel_size
    own = block_bytes(bound_plan) / gpus
    waits = pages * tier.page_latency
    if not own or not waits or (not write and own / pages < tier.triton_below):
        return nominal * gpus
    return gpus * own / (own / nominal + waits)


def load_seconds(bound_plan: BoundPlan, sequences: Value, tokens: Value, tier: str) -> Value:
    """Seconds until so many cached tokens of each sequence have come from a tier to the GPU, through those above it.

    ``load_seconds(bound_plan, 1, 8000, "cpu")``
    """
    plan, num_bytes = bound_plan.plan, sequences * replica_cache_bytes(bound_plan, tokens)
    seconds: Value = 0.0
    for one in plan.kv_offload.tiers if plan.kv_offload is not None else ():
        seconds = seconds + one.latency + num_bytes / link_bandwidth(bound_plan, one)
        if one.name == tier:
            break
    return seconds * (tokens > 0)


def tier_rows(bound_plan: BoundPlan, batch_shape: BatchShape, ttft: float | None, kv_capacity: float) -> list[TierRow]:
    """The GPU's KV cache and the tiers below: what they hold, and TTFT if the cached prefix came from there.

    ``ttft`` (s) is that of the plan as it is, ``kv_capacity`` the bytes of a GPU for its KV cache.
    """
    plan, offload = bound_plan.plan, bound_plan.plan.kv_offload
    if offload is None:
        return []
    gpus, cached = plan.gpus // plan.data_parallel_size, batch_shape.cached_tokens
    per_token = replica_cache_bytes(bound_plan, batch_shape.context) / batch_shape.context
    replicas = max(1, min(plan.data_parallel_size, plan.gpus_per_node // gpus))
    own = load_seconds(bound_plan, batch_shape.batch_per_replica, cached, offload.prefix_tier) if cached else 0.0
    own = own if offload.prefix_tier else 0.0
    sizes = {"gpu": kv_capacity * gpus}
    sizes |= {one.name: one.size + one.size_per_gpu * gpus + one.gpu_ratio * sizes["gpu"] for one in offload.tiers}
    rows = []
    for name, num_bytes in sizes.items():
        load = 0.0 if name == "gpu" else load_seconds(bound_plan, batch_shape.batch_per_replica, cached, name)
        rows.append(
            TierRow(
                name=name,
                size_bytes=float(num_bytes),
                node_bytes=float(num_bytes * (replicas if name in ("gpu", "cpu") else 1)),
                tokens=int(num_bytes / per_token) if per_token else None,
                load_ms=float(load * 1e3) if cached else None,
                ttft_ms=float((ttft - own + load) * 1e3) if cached and ttft is not None else None,
            )
        )
    return rows


def _check(args: PlanArgs, engine: Engine) -> None:
    """Refuse flags of another engine, names that nothing has, and flags without those that they belong to."""
    for name, allowed in (
        ("kv_offloading_backend", BACKENDS),
        ("hicache_write_policy", WRITE_POLICIES),
        ("hicache_storage_backend", tuple(STORAGE)),
    ):
        given = getattr(args, name)
        if given is not None and given not in allowed:
            raise UnknownName(f"`{name}`", given, allowed, field=name)
    given_sglang = [name for name in _SGLANG if getattr(args, name)]
    label = engine.label or engine.name
    if given_sglang and engine.name != "sglang":
        raise BadValue(
            f"`{given_sglang[0]}` is SGLang's: {label} takes `kv_offloading_size`, in GiB", field=given_sglang[0]
        )
    if given_sglang and not args.enable_hierarchical_cache:
        raise BadValue(f"`{given_sglang[0]}` needs `enable_hierarchical_cache`", field=given_sglang[0])
    if given_sglang and args.kv_offloading_size is not None:
        raise BadValue(
            "`enable_hierarchical_cache` and `kv_offloading_size` both size CPU memory: give one of them",
            field="kv_offloading_size",
        )
    if args.kv_offloading_backend is not None and engine.name != "vllm":
        raise BadValue(f"`kv_offloading_backend` is vLLM's, {label} has none", field="kv_offloading_backend")
    if args.kv_offloading_backend is not None and args.kv_offloading_size is None:
        raise BadValue("`kv_offloading_backend` needs `kv_offloading_size`", field="kv_offloading_backend")


@about("kv_tiers")
def parse_kv_tiers(value: str | Iterable[str] | Mapping[str, Any] | None) -> dict[str, dict[str, float]]:
    """Figures by tier in SI units: ``parse_kv_tiers("disk:size=2,read=7")  # {'disk': {'size': 2147483648.0, …}}``"""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        given = {str(name): figures for name, figures in value.items()}
    elif not isinstance(value, (str, list, tuple)):
        raise BadValue(f"`kv_tiers` takes tiers such as disk:size=64,read=7, not {abbreviate(value)}", field="kv_tiers")
    else:
        given = {}
        for text in (value if isinstance(value, str) else " ".join(map(str, value))).split():
            name, _, pairs = text.partition(":")
            given[name] = dict(pair.partition("=")[::2] for pair in pairs.split(",") if pair)
    tiers: dict[str, dict[str, float]] = {}
    for name, figures in given.items():
        if name not in TIERS:
            raise UnknownName("tier", name, TIERS, field="kv_tiers")
        if not isinstance(figures, Mapping):
            raise BadValue(f"`kv_tiers` takes figures such as {name}:size=64, not {abbreviate(figures)}")
        tiers[name] = {key: _figure(name, str(key), number) for key, number in figures.items()}
    return tiers


def _figure(tier: str, key: str, value: Any) -> float:
    """One figure in SI units."""
    if key not in _KEYS:
        raise UnknownName(f"figure of the tier {tier}", key, _KEYS, field="kv_tiers")
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadValue(f"`kv_tiers` {tier}:{key} must be a number, not {abbreviate(value)}") from None
    least = {"size": 0.0, "latency": 0.0, "concurrency": 1.0}.get(key, 1e-6)
    if key in ("read", "write") and number == float("inf"):
        return number
    if not least <= number <= 1e9 or (key == "concurrency" and number != int(number)):
        kind = "a whole number" if key == "concurrency" else "a number"
        raise BadValue(f"`kv_tiers` {tier}:{key} must be {kind} from {least:g} to 1e9, not {abbreviate(value)}")
    return number * _KEYS[key]


def _tier(name: str, figures: dict[str, float], engine: Engine, device: Hardware, gpus_per_node: int) -> KVTier:
    """A tier: figures that were given, else those of the data and of the device's links."""
    data = tier_data(name)
    if not {"size", "size_per_gpu", "gpu_ratio"} & set(figures):
        raise BadValue(f"the tier {name} needs a size: {flag('kv_tiers')} {name}:size=… (GiB)", field="kv_tiers")
    share = 1.0 if data.per == "gpu" else 1.0 / gpus_per_node
    bandwidth = {}
    for direction in ("read", "write"):
        given = figures.get(direction)
        bandwidth[f"{direction}_bandwidth"] = (_default(data, direction, device) if given is None else given) * share
    return KVTier(
        name=name,
        size=figures.get("size", 0.0),
        size_per_gpu=figures.get("size_per_gpu", 0.0),
        gpu_ratio=figures.get("gpu_ratio", 0.0),
        latency=figures.get("latency", data.latency),
        # a bandwidth that is given is what such copies reach
        page_latency=data.page_latency if engine.name in _PAGE_COPIES and "read" not in figures else 0.0,
        triton_below=data.triton_below,
        concurrency=int(figures.get("concurrency", data.concurrency)),
        duplex=data.duplex,
        **bandwidth,
    )


def _default(data: TierData, direction: str, device: Hardware) -> float:
    """Bytes a second of the tier's link where none were given: a share of a link of the device, or the data's own."""
    if data.link_share:
        link, needed, factor = parallelism.host_link(device), "pcie", data.link_share
    elif data.network_share:
        link, needed, factor = parallelism.network_link(device), "network", data.network_share
    else:
        return data.read_bandwidth if direction == "read" else data.write_bandwidth
    if link is None:
        raise BadValue(
            f"{device.name}.toml has no link for this tier: add [links.{needed}], or give read and write of it",
            field="kv_tiers",
        )
    return float(link.bandwidth * factor)
