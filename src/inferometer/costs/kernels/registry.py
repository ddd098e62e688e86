"""The installed kernel profiles, and which other device's profile serves a device that has none of its own."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import log2

import msgspec

from ...base.files import decode_json
from ...specs.catalog import DATA, hardware
from ...specs.structs import Hardware
from .surfaces import Surface

NVIDIA = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")  # architectures that run the measured kernels
FALLBACK_ARCH = "hopper"  # its kernels came closest on devices that were left out


class MeasuredCurves(msgspec.Struct, frozen=True):
    """Measured ratios of kernels of one kind and format: for each exact shape the values on the same axes."""

    axes: list[list[float]]
    shapes: dict[str, list[float]]  # "6144x4096" -> values, row by row


class KernelProfile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of a device's kernels: measured curves by exact shape, surfaces fitted over all shapes."""

    device: str
    source: str
    rounds: bool = False  # times of its 8-bit products include rounding their input
    measured: dict[str, dict[str, MeasuredCurves]] = {}  # kind -> format or head size -> curves
    fitted: dict[str, dict[str, Surface]] = {}  # kind -> format or head size -> surface


_left_out: ContextVar[frozenset[str]] = ContextVar("_left_out", default=frozenset())


@contextmanager
def left_out(*devices: str) -> Iterator[None]:
    """Plans that are bound inside have no profile of these devices: ``with left_out("h200"): bind(…)``

    How well a device is met that nobody measured can be seen only on one that somebody did.
    """
    token = _left_out.set(_left_out.get() | frozenset(devices))
    try:
        yield
    finally:
        _left_out.reset(token)


def installed() -> dict[str, tuple[str, ...]]:
    """Devices with fitted profiles, and of which engines' kernels: ``installed()["h200"]  # ('trtllm', 'vllm')``"""
    hidden = _left_out.get()
    return {name: engines for name, engines in _fitted().items() if name not in hidden} if hidden else _fitted()


def read_profile(device: str, engine: str) -> KernelProfile | None:
    """One installed profile: ``read_profile("h200", "vllm")``; None where there is none."""
    return None if device in _left_out.get() else _read(device, engine)


@functools.cache
def _fitted() -> dict[str, tuple[str, ...]]:
    engines: dict[str, list[str]] = {}
    for path in sorted((DATA / "profiles").glob("*/*.json")):
        if path.stem != "measured":
            engines.setdefault(path.parent.name, []).append(path.stem)
    return {device: tuple(names) for device, names in engines.items()}


@functools.cache
def _read(device: str, engine: str) -> KernelProfile | None:
    path = DATA / "profiles" / device / f"{engine}.json"
    return decode_json(path.read_bytes(), KernelProfile) if path.exists() else None


def fallback_order(device: Hardware, engine: str) -> list[tuple[str, str]]:
    """(device, engine) of all profiles that may serve a device, nearest first: its own, its architecture's, Hopper's.

    An engine's own kernels come before another's on the same device.
    """
    if device.architecture not in NVIDIA:
        return []
    pairs = [(name, maker) for name, engines in installed().items() for maker in engines]
    return sorted(pairs, key=lambda pair: (*_distance(device, known_device(pair[0])), pair[1] != engine))


def same_architecture(device: Hardware) -> list[KernelProfile]:
    """vLLM's kernels on other devices of the architecture: public tables first, then what this project measured."""
    names = {
        name
        for name in (*installed(), *_measured())
        if name != device.name and known_device(name).architecture == device.architecture
    }
    profiles = [read_profile(name, stem) for stem in ("vllm", "measured") for name in sorted(names)]
    return [profile for profile in profiles if profile is not None and profile.fitted]


@functools.cache
def _measured() -> tuple[str, ...]:
    return tuple(sorted(path.parent.name for path in (DATA / "profiles").glob("*/measured.json")))


@functools.cache
def known_device(name: str) -> Hardware:
    """A catalogue device, read once: a search orders its fallbacks hundreds of times."""
    return hardware(name)


def _distance(a: Hardware, b: Hardware) -> tuple[bool, bool, bool, float]:
    """Another device, another architecture, not the fallback's; then octaves of bandwidth and of FLOP/s apart."""
    peaks = (a.flops.get("bf16") or a.flops["fp16"]) / (b.flops.get("bf16") or b.flops["fp16"])
    octaves = abs(log2(a.memory_bandwidth / b.memory_bandwidth)) + abs(log2(peaks))
    return a.name != b.name, a.architecture != b.architecture, b.architecture != FALLBACK_ARCH, octaves
