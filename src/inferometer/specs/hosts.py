"""Hosts: what launches an engine's kernels and plans its steps, as data, and an engine's times on one of them.

An engine file says how much work a step is for the host: launches by kind of operator, and seconds of Python on the
host that all engine files are written for. A host file says how long these take there. Where an engine was watched on
a host, the host file has that engine's own seconds, and they win.
"""

from __future__ import annotations

import os

import msgspec

from ..base.errors import BadFile, BadValue, UnknownName, abbreviate, about
from ..base.files import convert, input_path, read_toml
from ..base.input_file import file_stem, is_input
from .catalog import names, registered_name, shipped
from .structs import Engine, Host

DEFAULT_HOST = "server"
_PYTHON_SECONDS = (
    "step_floor",
    "step_floor_per_sequence",
    "request_overhead",
    "http_overhead",
    "token_overhead",
)


@about("host_profile")
def host(text: str = DEFAULT_HOST) -> Host:
    """A name, or a file that ``profile --launches`` wrote, with figures of your own: ``host("server:launch=3e-6")``"""
    name, _, overrides = str(text).strip().partition(":")
    if name.endswith(".toml") or os.sep in name or name == "-":
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
        data["engines"] = {}  # seconds that were seen with other figures say nothing about these
        data["source"] = {**data.get("source", {}), key.strip(): "given by you"}
    return _checked(convert({**data, "name": title}, Host, f"host {title}"))


def _checked(given: Host) -> Host:
    """The host itself; figures that cannot be seconds, or a factor, are refused."""
    if not 1e-7 <= given.launch <= 1e-2:
        raise BadValue(f"host {given.name}: launch must be from 1e-7 to 0.01 s (5 µs is 5e-6), not {given.launch:g}")
    if not 0.05 <= given.slowdown <= 100:
        raise BadValue(f"host {given.name}: slowdown must be a factor from 0.05 to 100, not {given.slowdown:g}")
    for engine, seen in given.engines.items():
        seconds = {k: v for k, v in msgspec.structs.asdict(seen).items() if isinstance(v, float)} | seen.launch
        wrong = next((key for key, value in seconds.items() if not 0 <= value < 10), None)
        if wrong:
            raise BadValue(f"host {given.name}: engines.{engine} {wrong} must be seconds from 0 to 10")
    return given


def hosted_engine(engine: Engine, where: Host) -> Engine:
    """An engine with its seconds on a host: ``hosted_engine(catalog.engine("vllm"), host("h200-vm")).launch["moe"]``"""
    seconds = {field: getattr(engine, field) * where.slowdown for field in _PYTHON_SECONDS}
    launch = {kind: number * where.launch for kind, number in engine.launches.items()}
    seen = where.engines.get(engine.name)
    if seen is not None:
        own = msgspec.structs.asdict(seen)
        launch = {**launch, **own.pop("launch")}
        seconds |= {field: value for field, value in own.items() if value is not None}
    return msgspec.structs.replace(engine, launch=launch, host=where.name, host_launch=where.launch, **seconds)
