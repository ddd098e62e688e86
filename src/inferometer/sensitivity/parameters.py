"""Parameters of a machine that can be scaled, under the keys of its hardware file and of its engine's.

request = build_request("llama-3.1-8b", "h200")
bandwidth = parameters(request)["memory_bandwidth"]
bandwidth.scaled_request(request, 1.1)        # the same request on a device with 10% more of it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..costs import parallelism
from ..costs.precision import ROLES, computed_as, peak_format
from ..inference.request import Request
from ..specs.catalog import precision
from ..specs.structs import Hardware

Scaling = Callable[[Request, float], Request]
ALL_SPEEDS = "speeds"  # the parameter that scales everything of the device that is a speed


class Parameter(NamedTuple):
    """One number of a machine, or several that are scaled together."""

    key: str
    label: str
    unit: str
    value: float | None  # in SI; None where it is several numbers
    scaled_request: Scaling
    used: bool = True  # by this plan
    better: int = 1  # -1: less of it is better
    within: str = ""  # the parameter that scales this one too, so that the two are not two findings
    of: str = "hardware"  # which file has the key

    def scaled_value(self, factor: float) -> float | None:
        """The number times a factor, where it is one number."""
        return None if self.value is None else self.value * factor


def parameters(request: Request) -> dict[str, Parameter]:
    """All parameters of a request, by key: ``parameters(request)["flops"].value``"""
    rows = [*_chip(request), *_links(request), *_tiers(request), *_host(request), _all_speeds()]
    return {parameter.key: parameter for parameter in rows}


def _with_device(request: Request, **figures: Any) -> Request:
    """The request on a device with other figures; its kernels are the nominal device's."""
    return request._replace(
        device=replace(request.device, **figures), nominal_device=request.nominal_device or request.device
    )


# ------------------------------------------------------------------ the chip


def _chip(request: Request) -> list[Parameter]:
    device, formats = request.device, formats_in_use(request)
    by_format = [
        Parameter(f"flops.{name}", f"FLOP/s in {name}", "FLOP/s", device.flops[name], _one_format(name), within="flops")
        for name in formats
    ]
    return [
        Parameter("flops", "FLOP/s, all formats", "FLOP/s", device.flops[formats[0]], _flops),
        *by_format,
        Parameter("memory_bandwidth", "memory bandwidth", "B/s", device.memory_bandwidth, _memory_bandwidth),
        Parameter("memory", "memory size", "B", device.memory, _memory),
        Parameter("clock", "clock", "Hz", device.clock or None, _clock, within="flops"),
    ]


def power_limit(request: Request) -> Parameter:
    """The watts that a device may draw, which limit long products: ``power_limit(request).value  # 700.0``"""

    def scaled(request: Request, factor: float) -> Request:
        return _with_device(request, power=request.device.power * factor)

    return Parameter("power", "power limit", "W", request.device.power or None, scaled)


def formats_in_use(request: Request) -> list[str]:
    """Number formats that the plan's products run in, that of the most weights first: ``['fp8', 'bf16']``"""
    device, dtype = request.device, request.plan.dtype
    ops = [op for block in request.model.blocks for op in block.ops]
    roles = {op.role for op in ops if op.peak.removesuffix("_peak_flops") in ROLES}
    computed = computed_as(request.engine, request.model, device, request.roles)
    quantizations = [computed[role] for role in ("experts", "mlp", *ROLES) if role in roles]
    attention = [dtype] if any(op.peak.startswith("attention") for op in ops) else []
    formats = (peak_format(device, precision(name), dtype) for name in (*quantizations, *attention, dtype))
    return list(dict.fromkeys(formats))


def _flops(request: Request, factor: float) -> Request:
    return _with_device(request, flops={name: peak * factor for name, peak in request.device.flops.items()})


def _one_format(name: str) -> Scaling:
    def scaled(request: Request, factor: float) -> Request:
        return _with_device(request, flops={**request.device.flops, name: request.device.flops[name] * factor})

    return scaled


def _memory_bandwidth(request: Request, factor: float) -> Request:
    return _with_device(request, memory_bandwidth=request.device.memory_bandwidth * factor)


def _memory(request: Request, factor: float) -> Request:
    return _with_device(request, memory=request.device.memory * factor)


def _clock(request: Request, factor: float) -> Request:
    """What the chip's clock moves: all FLOP/s, and the start of kernels; memory and links have clocks of their own."""
    faster = _kernel_starts(_flops(request, factor), 1 / factor)
    return _with_device(faster, clock=request.device.clock * factor)


# ------------------------------------------------------------------ links


def _links(request: Request) -> list[Parameter]:
    used = links_in_use(request)
    return [
        Parameter(
            key=f"links.{name}.{field}",
            label=f"{name} {field}",
            unit=unit,
            value=getattr(link, field),
            scaled_request=_link(name, field),
            used=name in used,
            better=better,
        )
        for name, link in request.device.links.items()
        for field, unit, better in (("bandwidth", "B/s", 1), ("latency", "s", -1))
    ]


def _link(name: str, field: str) -> Scaling:
    def scaled(request: Request, factor: float) -> Request:
        link = request.device.links[name]
        other = replace(link, **{field: getattr(link, field) * factor})
        return _with_device(request, links={**request.device.links, name: other})

    return scaled


def links_in_use(request: Request) -> set[str]:
    """The links that an axis of the plan, or what is kept on the host, runs over."""
    plan, device = request.plan, request.device
    sizes = parallelism.layout_env(plan, request.model)
    ranks = {
        "tp": sizes["tp"],
        "dcp": sizes["dcp"],
        "ep": max(sizes["a2a"], sizes["ep"]),
        "pp": plan.pipeline_parallel_size,
    }
    used = set()
    for axis, place in parallelism.places(plan, device).items():
        if ranks[axis] > 1:
            used |= {place.name} | ({"network"} if place.spans_nodes else set())
    if plan.cpu_offload_bytes:
        used |= {next((name for name in ("c2c", "pcie", "host") if name in device.links), "")}
    return used


# ------------------------------------------------------------------ tiers of the KV cache


def _tiers(request: Request) -> list[Parameter]:
    """The links over which a cached prefix comes from its tier."""
    offload = request.plan.kv_offload
    if offload is None or not offload.prefix_tier:
        return []
    names = [tier.name for tier in offload.tiers]
    used = offload.tiers[: names.index(offload.prefix_tier) + 1]
    return [
        Parameter(
            key=f"kv_tiers.{tier.name}.{key}",
            label=f"KV tier {tier.name}, {key}",
            unit=unit,
            value=getattr(tier, field),
            scaled_request=_tier(tier.name, field),
            better=better,
        )
        for tier in used
        for key, field, unit, better in (("read", "read_bandwidth", "B/s", 1), ("latency", "latency", "s", -1))
    ]


def _tier(name: str, field: str) -> Scaling:
    def scaled(request: Request, factor: float) -> Request:
        offload = request.plan.kv_offload
        assert offload is not None, "see `_tiers`"
        tiers = tuple(
            replace(tier, **{field: getattr(tier, field) * factor}) if tier.name == name else tier
            for tier in offload.tiers
        )
        return request._replace(plan=replace(request.plan, kv_offload=replace(offload, tiers=tiers)))

    return scaled


# ------------------------------------------------------------------ the host and its engine


def _host(request: Request) -> list[Parameter]:
    engine, http = request.engine, request.plan.frontend == "http"
    frontend = engine.request_overhead + (engine.http_overhead if http else 0.0)
    starts = any(kernel.fixed for kernel in engine.kernels.values())

    def seconds(key: str, label: str, value: float | None, scaling: Scaling, used: bool) -> Parameter:
        return Parameter(key, label, "s", value, scaling, used, better=-1, of="engine")

    floor = _engine_fields("step_floor", "step_floor_per_sequence", "step_floor_per_state_group")
    return [
        seconds("launch", "kernel launch", engine.host_launch, _launch, any(engine.launch.values())),
        seconds(
            "step_overhead",
            "host time per step",
            engine.step_overhead,
            _engine_fields("step_overhead"),
            engine.step_overhead > 0,
        ),
        seconds("step_floor", "minimum host time per step", engine.step_floor, floor, engine.step_floor > 0),
        seconds(
            "request_overhead",
            "front end, per request",
            frontend,
            _engine_fields("request_overhead", "http_overhead"),
            frontend > 0,
        ),
        seconds("kernels.fixed", "kernel start-up", None, _kernel_starts, starts),
    ]


def _engine_fields(*fields: str) -> Scaling:
    def scaled(request: Request, factor: float) -> Request:
        values = {field: getattr(request.engine, field) * factor for field in fields}
        return request._replace(engine=replace(request.engine, **values))

    return scaled


def _launch(request: Request, factor: float) -> Request:
    launch = {kind: took * factor for kind, took in request.engine.launch.items()}
    return request._replace(engine=replace(request.engine, launch=launch))


def _kernel_starts(request: Request, factor: float) -> Request:
    kernels = {kind: replace(kernel, fixed=kernel.fixed * factor) for kind, kernel in request.engine.kernels.items()}
    return request._replace(engine=replace(request.engine, kernels=kernels))


# ------------------------------------------------------------------ everything


def _all_speeds() -> Parameter:
    """FLOP/s, memory and links as one: what is left of the time is the host's and the kernels' own."""
    return Parameter(ALL_SPEEDS, "all speeds together", "", None, _speeds, within=ALL_SPEEDS)


def _speeds(request: Request, factor: float) -> Request:
    device: Hardware = request.device
    links = {
        name: replace(link, bandwidth=link.bandwidth * factor, latency=link.latency / factor)
        for name, link in device.links.items()
    }
    for tier in request.plan.kv_offload.tiers if request.plan.kv_offload is not None else ():
        request = _tier(tier.name, "latency")(_tier(tier.name, "read_bandwidth")(request, factor), 1 / factor)
    return _with_device(_flops(request, factor), memory_bandwidth=device.memory_bandwidth * factor, links=links)
