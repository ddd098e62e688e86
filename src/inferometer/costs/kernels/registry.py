"""The shipped figures of kernels by shape, and whose a device uses that has none of its own."""

from __future__ import annotations

import functools
from math import log2

import msgspec

from ...base.files import decoded
from ...specs.catalog import DATA, hardware
from ...specs.structs import Hardware
from .surfaces import Grid

NVIDIA = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")  # architectures that run the measured kernels
STAND_IN = "hopper"  # whose kernels came closest on devices that were left out


class Curves(msgspec.Struct, frozen=True):
    """Measured ratios of kernels of one kind and format: for each exact shape the values on the same axes."""

    axes: list[list[float]]
    shapes: dict[str, list[float]]  # "6144x4096" -> values, row by row


class Profile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of a device's kernels: measured curves by exact shape, surfaces fitted over all shapes."""

    device: str
    source: str
    rounds: bool = False  # times of its 8-bit products include rounding their input
    measured: dict[str, dict[str, Curves]] = {}  # kind -> format or head size -> curves
    fitted: dict[str, dict[str, Grid]] = {}  # kind -> format or head size -> surface


@functools.cache
def shipped() -> dict[str, tuple[str, ...]]:
    """Devices with figures of their own, and whose kernels: ``shipped()["h200"]  # ('trtllm', 'vllm')``"""
    found: dict[str, list[str]] = {}
    for path in sorted((DATA / "profiles").glob("*/*.json")):
        if path.stem != "measured":
            found.setdefault(path.parent.name, []).append(path.stem)
    return {device: tuple(engines) for device, engines in found.items()}


@functools.cache
def read(device: str, whose: str) -> Profile | None:
    """One file of the shelf: ``read("h200", "vllm")``; None where there is none."""
    path = DATA / "profiles" / device / f"{whose}.json"
    return decoded(path.read_bytes(), Profile) if path.exists() else None


def relatives(device: Hardware, whose: str) -> list[tuple[str, str]]:
    """Devices and engines whose figures may stand in, nearest first: itself, its architecture, then Hopper's.

    An engine's own kernels come before another's on the same device.
    """
    if device.architecture not in NVIDIA:
        return []
    able = [(name, engine) for name, engines in shipped().items() for engine in engines]
    return sorted(able, key=lambda one: (*_distance(device, known_device(one[0])), one[1] != whose))


def kin(device: Hardware) -> list[Profile]:
    """What vLLM's kernels take on other devices of the architecture: tables first, then what was measured here."""
    near = [
        name
        for name in (*shipped(), *_measured())
        if name != device.name and known_device(name).architecture == device.architecture
    ]
    found = [read(name, word) for word in ("vllm", "measured") for name in sorted(set(near))]
    return [one for one in found if one is not None and one.fitted]


@functools.cache
def _measured() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in (DATA / "profiles").glob("*/measured.json")))


@functools.cache
def known_device(name: str) -> Hardware:
    """Read once: a search asks for relatives hundreds of times."""
    return hardware(name)


def _distance(a: Hardware, b: Hardware) -> tuple[bool, bool, bool, float]:
    """The same device, architecture, a good stand-in; then octaves of bandwidth and of FLOP/s."""
    peaks = (a.flops.get("bf16") or a.flops["fp16"]) / (b.flops.get("bf16") or b.flops["fp16"])
    far = abs(log2(a.memory_bandwidth / b.memory_bandwidth)) + abs(log2(peaks))
    return a.name != b.name, a.architecture != b.architecture, b.architecture != STAND_IN, far
