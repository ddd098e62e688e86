"""Figures of a machine that can be turned, under the keys of its hardware file and of its engine's.

asked = request("llama-3.1-8b", "h200")
knob = knobs(asked)["memory_bandwidth"]
knob.turned(asked, 1.1)        # the same request on a device with 10% more of it
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..costs import parallelism
from ..costs.precision import ROLES, peak_format
from ..inference.request import Request
from ..specs.catalog import precision
from ..specs.structs import Hardware

Turn = Callable[[Request, float], Request]
TOGETHER = "speeds"  # the knob that turns everything of the device that is a speed


class Knob(NamedTuple):
    """One figure, or several that are turned together."""

    key: str
    label: str
    unit: str
    value: float | None  # in SI; None where it is several figures
    turned: Turn
    used: bool = True  # by this plan
    better: int = 1  # -1: less of it is better
    within: str = ""  # the knob that turns this figure too, so that the two are not told as two findings
    of: str = "hardware"  # whose file has the key

    def scaled(self, factor: float) -> float | None:
        """The figure times a factor, where it is one figure."""
        return None if self.value is None else self.value * factor


def knobs(request: Request) -> dict[str, Knob]:
    """All of a request, by key, in the order people ask for them."""
    found = [*_chip(request), *_links(request), *_host(request), _together()]
    return {knob.key: knob for knob in found}


def _changed(request: Request, **figures: Any) -> Request:
    """The request on a device with other figures; its kernels are the usual device's."""
    return request._replace(device=replace(request.device, **figures), usual=request.usual or request.device)


# ------------------------------------------------------------------ the chip


def _chip(request: Request) -> list[Knob]:
    device, formats = request.device, formats_in_use(request)
    named = [
        Knob(f"flops.{word}", f"FLOP/s in {word}", "FLOP/s", device.flops[word], _one_format(word), within="flops")
        for word in formats
    ]
    return [
        Knob("flops", "FLOP/s, all formats", "FLOP/s", device.flops[formats[0]], _flops),
        *named,
        Knob(
            "memory_bandwidth",
            "memory bandwidth",
            "B/s",
            device.memory_bandwidth,
            lambda a, f: _changed(a, memory_bandwidth=a.device.memory_bandwidth * f),
        ),
        Knob("memory", "memory size", "B", device.memory, lambda a, f: _changed(a, memory=a.device.memory * f)),
        Knob("clock", "clock", "Hz", device.clock or None, _clock, within="flops"),
    ]


def formats_in_use(request: Request) -> list[str]:
    """Number formats that the plan's products run in, that of the most weights first: ``['fp8', 'bf16']``"""
    device, dtype = request.device, request.plan.dtype
    ops = [op for block in request.model.blocks for op in block.ops]
    roles = {op.role for op in ops if op.peak.removesuffix("_peak_flops") in ROLES}
    words = [request.roles[role] for role in ("experts", "mlp", *ROLES) if role in roles]
    attends = [dtype] if any(op.peak.startswith("attention") for op in ops) else []
    return list(dict.fromkeys(peak_format(device, precision(word), dtype) for word in (*words, *attends, dtype)))


def _flops(request: Request, factor: float) -> Request:
    return _changed(request, flops={word: peak * factor for word, peak in request.device.flops.items()})


def _one_format(word: str) -> Turn:
    def turned(request: Request, factor: float) -> Request:
        return _changed(request, flops={**request.device.flops, word: request.device.flops[word] * factor})

    return turned


def _clock(request: Request, factor: float) -> Request:
    """What the chip's clock moves: all FLOP/s, and the start of kernels; memory and links have clocks of their own."""
    faster = _starts(_flops(request, factor), 1 / factor)
    return _changed(faster, clock=request.device.clock * factor)


# ------------------------------------------------------------------ links


def _links(request: Request) -> list[Knob]:
    used = links_in_use(request)
    found = []
    for name, link in request.device.links.items():
        for word, unit, better in (("bandwidth", "B/s", 1), ("latency", "s", -1)):
            found.append(
                Knob(
                    f"links.{name}.{word}",
                    f"{name} {word}",
                    unit,
                    getattr(link, word),
                    _link(name, word),
                    name in used,
                    better,
                )
            )
    return found


def _link(name: str, word: str) -> Turn:
    def turned(request: Request, factor: float) -> Request:
        link = request.device.links[name]
        other = replace(link, **{word: getattr(link, word) * factor})
        return _changed(request, links={**request.device.links, name: other})

    return turned


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
        used |= {next((word for word in ("c2c", "pcie", "host") if word in device.links), "")}
    return used


# ------------------------------------------------------------------ the host and its engine


def _host(request: Request) -> list[Knob]:
    engine, front = request.engine, request.plan.frontend == "http"
    frontend = engine.request_overhead + (engine.http_overhead if front else 0.0)
    starts = any(kernel.fixed for kernel in engine.kernels.values())
    return [
        Knob("launch", "launching kernels", "s", None, _launch, any(engine.launch.values()), -1, of="engine"),
        Knob(
            "step_overhead",
            "host time of a step",
            "s",
            engine.step_overhead,
            _scaled("step_overhead"),
            engine.step_overhead > 0,
            -1,
            of="engine",
        ),
        Knob(
            "step_floor",
            "shortest step of the host",
            "s",
            engine.step_floor,
            _scaled("step_floor", "step_floor_per_sequence"),
            engine.step_floor > 0,
            -1,
            of="engine",
        ),
        Knob(
            "request_overhead",
            "front end, per request",
            "s",
            frontend,
            _scaled("request_overhead", "http_overhead"),
            frontend > 0,
            -1,
            of="engine",
        ),
        Knob("kernels.fixed", "start of a kernel", "s", None, _starts, starts, -1, of="engine"),
    ]


def _scaled(*words: str) -> Turn:
    def turned(request: Request, factor: float) -> Request:
        figures = {word: getattr(request.engine, word) * factor for word in words}
        return request._replace(engine=replace(request.engine, **figures))

    return turned


def _launch(request: Request, factor: float) -> Request:
    figures = {kind: took * factor for kind, took in request.engine.launch.items()}
    return request._replace(engine=replace(request.engine, launch=figures))


def _starts(request: Request, factor: float) -> Request:
    kernels = {kind: replace(kernel, fixed=kernel.fixed * factor) for kind, kernel in request.engine.kernels.items()}
    return request._replace(engine=replace(request.engine, kernels=kernels))


# ------------------------------------------------------------------ everything


def _together() -> Knob:
    """FLOP/s, memory and links as one: what is left of the time is the host's and the kernels' own."""
    return Knob(TOGETHER, "all speeds at once", "", None, _speeds, within=TOGETHER)


def _speeds(request: Request, factor: float) -> Request:
    device: Hardware = request.device
    links = {
        name: replace(link, bandwidth=link.bandwidth * factor, latency=link.latency / factor)
        for name, link in device.links.items()
    }
    return _changed(_flops(request, factor), memory_bandwidth=device.memory_bandwidth * factor, links=links)
