"""Hosts: what launches an engine's kernels and plans its steps, as data, and an engine's times on one of them.

An engine file says how much work a step is for the host: launches by kind of operator, and seconds of Python on the
host that all engine files are written for. A host file says how long these take there. Where an engine was watched on
a host, the host file has that engine's own seconds, and they win.

The file of ``profile --quick`` is a host file that also has figures of the device: two devices of one model differ.
"""

from __future__ import annotations

import os

import msgspec

from ..base.errors import BadFile, BadValue, UnknownName, abbreviate, about
from ..base.files import convert, input_path, read_toml
from ..base.input_file import file_stem, has_ending, is_input
from .catalog import names, registered_name, shipped
from .device_names import is_same
from .structs import Engine, Hardware, Host

DEFAULT_HOST = "server"
REFERENCE = "h200-vm"  # the host that engine files count launches on
_PYTHON_SECONDS = (
    "step_floor",
    "step_floor_per_sequence",
    "step_floor_per_state_group",
    "request_overhead",
    "http_overhead",
    "token_overhead",
)
_COMPILED = ("linear", "other", "scan", "chunk_scan", "state_update")  # they scale as the timed launches do
_TRITON = ("moe",)  # Python of a custom operator, and launches of Triton kernels


@about("host_profile")
def host(text: str = DEFAULT_HOST) -> Host:
    """A name, or a file that ``profile`` wrote, with figures of your own: ``host("server:launch=3e-6")``"""
    name, _, overrides = str(text).strip().partition(":")
    if has_ending(name, ".toml") or os.sep in name or name == "-":
        path = input_path(name)
        if not is_input(path):
            raise BadFile(f"no host file {abbreviate(name)}")
        data, title = dict(read_toml(path)), file_stem(path)
    else:
        registered = registered_name("hosts", name)
        if registered is None:
            raise UnknownName("host", name, names("hosts"), field="host_profile")
        data, title = shipped("hosts", registered), registered
    for assignment in filter(None, overrides.split(",")):
        key, _, value = assignment.partition("=")
        if key.strip() not in ("launch", "slowdown"):
            raise UnknownName(f"figure of host {title}", key, ("launch", "slowdown"), field="host_profile")
        try:
            data[key.strip()] = float(value)
        except ValueError:
            raise BadValue(f"`host_profile` {title}:{key} must be a number, not {value!r}") from None
        data["engines"], data["figures"] = {}, {}  # what was seen with other figures says nothing about these
        data["source"] = {**data.get("source", {}), key.strip(): "given by you"}
    return _checked(convert({**data, "name": title}, Host, f"host {title}"))


def _checked(given: Host) -> Host:
    """The host itself; figures that cannot be seconds, or a factor, are refused."""
    if not 1e-7 <= given.launch <= 1e-2:
        raise BadValue(f"host {given.name}: launch must be from 1e-7 to 0.01 s (5 µs is 5e-6), not {given.launch:g}")
    if not 0.05 <= given.slowdown <= 100:
        raise BadValue(f"host {given.name}: slowdown must be a factor from 0.05 to 100, not {given.slowdown:g}")
    for engine, seen in given.engines.items():
        if engine not in names("engines"):
            raise UnknownName(f"engine of host {given.name}", engine, names("engines"))
        if not 0.05 <= seen.launch_factor <= 100:
            raise BadValue(f"host {given.name}: engines.{engine} launch_factor must be a factor from 0.05 to 100")
        fields = msgspec.structs.asdict(seen)
        seconds = {k: v for k, v in fields.items() if isinstance(v, float) and k != "launch_factor"} | seen.launch
        wrong = next((key for key, value in seconds.items() if not 0 <= value < 10), None)
        if wrong:
            raise BadValue(f"host {given.name}: engines.{engine} {wrong} must be seconds from 0 to 10")
    for name, figure in given.figures.items():
        if not 0 < figure.value < 1e18 or not 0 < (1.0 if figure.reference is None else figure.reference) < 1e18:
            raise BadValue(f"host {given.name}: figures.{name} and its reference must be above 0")
    return given


# ------------------------------------------------------------------ the device that a host was measured with


def is_machine(path: str | None) -> bool:
    """Whether a profile is the file of a machine, not of kernels: ``is_machine("machine.toml")  # True``"""
    return path is not None and has_ending(path, ".toml")


@about("profile")
def machine(path: str, device: Hardware) -> Host:
    """The machine of ``profile --quick``, refused for another device: ``machine("machine.toml", hardware("h200"))``"""
    measured = host(path)
    if not measured.device:
        raise BadValue(f"{abbreviate(path)} describes a host, not a device: give it as `host_profile`")
    if not is_same(measured.device, device):
        raise BadValue(
            f"{abbreviate(path)} was measured on {abbreviate(measured.device)}, not on {device.name}: it says nothing "
            f"about that device (`host_profile` takes the figures of its host)"
        )
    return measured


def machine_device(device: Hardware, measured: Host) -> Hardware:
    """The device as it is in one machine: ``machine_device(hardware("h200"), machine("machine.toml", h200))``

    Memory and matrix units are faster or slower by the ratio to what predictions take them for. Clocks that fall under
    load: the ratio of sustained products says how long prompts take in the end, that of short ones how they begin.
    """
    memory, burst = (_ratio(measured, name) or 1.0 for name in ("matrix_vector", "product_burst"))
    sustained = _ratio(measured, "product_sustained")
    throttle = device.throttle
    if throttle and sustained is not None:
        throttle = max(0.0, (1 + throttle) * burst / sustained - 1)
    return msgspec.structs.replace(
        device,
        label=f"{device.label or device.name}, {measured.name}",
        memory_bandwidth=device.memory_bandwidth * memory,
        flops={number_format: peak * burst for number_format, peak in device.flops.items()},
        throttle=throttle,
    )


def _ratio(measured: Host, name: str) -> float | None:
    """A figure over its reference; None where one of them is not known, or both have no likeness."""
    figure = measured.figures.get(name)
    if figure is None or figure.reference is None:
        return None
    ratio = figure.value / figure.reference
    if not 0.2 <= ratio <= 5:
        raise BadValue(f"host {measured.name}: {name} is {ratio:.3g} times its reference, which is implausible")
    return ratio


def hosted_engine(engine: Engine, where: Host) -> Engine:
    """An engine with its seconds on a host: ``hosted_engine(catalog.engine("vllm"), host("h200-vm")).launch["moe"]``"""
    seconds = {field: getattr(engine, field) * where.slowdown for field in _PYTHON_SECONDS}
    seen = where.engines.get(engine.name)
    each = dict.fromkeys(engine.launches, where.launch)
    triton = _ratio(where, "triton_launch")
    if triton is not None:
        each |= {kind: triton * host(REFERENCE).launch for kind in _TRITON if kind in each}
    if seen is not None:
        each |= {kind: where.launch * seen.launch_factor for kind in _COMPILED if kind in each}
    launch = {kind: number * each[kind] for kind, number in engine.launches.items()}
    if seen is not None:
        own = msgspec.structs.asdict(seen)
        del own["launch_factor"]
        if seen.step_floor is not None and engine.step_floor:  # the same Python, with more to do
            slower = seen.step_floor / engine.step_floor
            seconds["step_floor_per_state_group"] = engine.step_floor_per_state_group * slower
        launch = {**launch, **own.pop("launch")}
        seconds |= {field: value for field, value in own.items() if value is not None}
    return msgspec.structs.replace(engine, launch=launch, host=where.name, host_launch=where.launch, **seconds)
