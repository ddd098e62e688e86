"""The installed kernel profiles, what a device reaches of its peaks, and whose profiles serve one that has none."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from math import hypot, log2
from typing import NamedTuple

import msgspec

from ...base.cache import cache_by_identity
from ...base.files import decode_json
from ...base.symbols import Value, scalar
from ...specs.catalog import DATA, constants, hardware
from ...specs.structs import Hardware, Spec
from .surfaces import RowTiles, SplitTiles, Surface

MATRIX_UNITS = {"volta": 0, "turing": 0, "ampere": 0, "ada": 0, "hopper": 1, "blackwell": 2}  # see `matrix_units`


class MeasuredCurves(msgspec.Struct, frozen=True):
    """Measured ratios of kernels of one kind and format: for each exact shape the values on the same axes."""

    axes: list[list[float]]
    shapes: dict[str, list[float]]  # "6144x4096" -> values, row by row


class TimedRow(NamedTuple):
    """A kernel that a user timed: its table, its shape and its roofline seconds at the device's peaks."""

    kind: str
    table_key: str
    dims: dict[str, float]
    compute: float
    memory: float
    seconds: float


class KernelProfile(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """What is known of a device's kernels: measured curves by exact shape, surfaces fitted over all shapes."""

    device: str
    source: str
    rounds: bool = False  # times of its 8-bit products include rounding their input
    measured: dict[str, dict[str, MeasuredCurves]] = {}  # kind -> format or head size -> curves
    fitted: dict[str, dict[str, Surface]] = {}  # kind -> format or head size -> surface
    row_tiles: dict[str, RowTiles] = {}  # format -> how its products take their rows, where that was seen
    split_tiles: dict[str, SplitTiles] = {}  # head size -> how decode attention spreads contexts over SMs, likewise
    tuned: dict[str, list[tuple[int, int]]] = {}  # format -> experts and their width that the engine has settings for
    rows: tuple[TimedRow, ...] = ()  # of a user's file: surfaces of others are moved to where these lie
    warnings: tuple[str, ...] = ()  # about a user's file: rows that are not used, another device than the plan's

    def tiles(self, kind: str, table_key: str) -> RowTiles | None:
        """How a table's kernel takes its rows: ``read_profile("h200", "vllm").tiles("linear", "fp8").rows  # 256.0``"""
        return self.row_tiles.get(table_key) if kind == "linear" else None

    def splits(self, kind: str, table_key: str) -> SplitTiles | None:
        """How a table's kernel cuts contexts: ``profile.splits("decode_attention", "128").block``"""
        return self.split_tiles.get(table_key) if kind == "decode_attention" else None

    def surface_key(self, kind: str, table_key: str, dims: Mapping[str, Value]) -> str:
        """The key of the surface that serves a shape: experts run with settings tuned for their sizes, or without.

        ``profile.surface_key("moe", "bf16", {"experts": 64, "inner": 1408})  # "bf16-untuned"``
        """
        if kind != "moe" or table_key not in self.tuned:
            return table_key
        sizes = dims["experts"], dims["inner"]
        if not all(scalar(size) for size in sizes):
            return table_key
        return f"{table_key}-{'tuned' if sizes in self.tuned[table_key] else 'untuned'}"


_left_out: ContextVar[frozenset[str]] = ContextVar("_left_out", default=frozenset())


@contextmanager
def left_out(*devices: str) -> Iterator[None]:
    """Plans that are bound inside have no profile of these devices: ``with left_out("h200"): bind(…)``

    How well a device without measurements is met can be seen only on one that has them.
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


class MemoryReach(Spec, frozen=True, kw_only=True):
    """What the best kernels read from one kind of memory, as a share of its bandwidth."""

    share: float
    source: str


class PowerReach(Spec, frozen=True, kw_only=True):
    """What a power limit leaves of a card's FLOP/s."""

    most: float  # share of its FLOP/s, however much power there is
    joules_per_flop: dict[str, float]  # of 16-bit products, by architecture and whether its memory is HBM
    joules_source: dict[str, str]
    source: str


class ReachConstants(Spec, frozen=True, kw_only=True):
    """data/reach.toml: what devices without measurements reach of their data sheets."""

    memory: dict[str, MemoryReach]  # by kind of memory
    power: PowerReach


@functools.cache
def reach_constants() -> ReachConstants:
    """data/reach.toml, read once."""
    return constants("reach", ReachConstants)


class Reach(NamedTuple):
    """Shares of its data sheet that a device's best kernels get: ``reach(hardware("a40"))  # (0.80, 0.80)``"""

    flops: float
    memory: float


H100_REACH = Reach(0.803, 0.88)  # what `reach_flops` is relative to; what engines' own constants were seen with, too


def reach(device: Hardware) -> Reach:
    """What a device reaches of its FLOP/s and its bandwidth: as its file says, else by its power and its memory."""
    memory = device.reach_memory
    if not memory:
        kind = reach_constants().memory.get(device.memory_kind)
        memory = kind.share if kind else H100_REACH.memory
    if device.reach_flops:
        return Reach(H100_REACH.flops * device.reach_flops, memory)
    power = reach_constants().power
    family = device.architecture + ("-hbm" if has_hbm(device) else "")
    joules = power.joules_per_flop.get(family)
    if not joules or not device.power:
        return Reach(H100_REACH.flops, memory)
    return Reach(min(power.most, device.power / (joules * peak_flops(device))), memory)


def relative_reach(device: Hardware, seen_on: str = "") -> Reach:
    """The same over what an H100 reaches, or another device: ``relative_reach(hardware("mi300x"))  # (0.637, 1.0)``"""
    shares, others = reach(device), reach(known_device(seen_on)) if seen_on else H100_REACH
    return Reach(shares.flops / others.flops, shares.memory / others.memory)


# ------------------------------------------------------------------ donors: whose kernels serve a device


class Donor(NamedTuple):
    """A device whose tables serve another: ``donors(hardware("rtx5090"), "vllm")[0].device.name  # 'l40s'``"""

    device: Hardware
    engines: tuple[str, ...]  # its profiles, best first
    distance: float  # steps of memory, matrix units and architecture
    octaves: float  # of bandwidth, FLOP/s, and SMs times clock
    same_generation: bool

    @property
    def weight(self) -> float:
        """What its answer counts beside those of others."""
        return self.distance**-2

    @property
    def label(self) -> str:
        """``L40S (GDDR6, 1.2 octaves away)``"""
        kind = f"{self.device.memory_kind.upper()}, " if self.device.memory_kind else ""
        return f"{self.device.name.upper()} ({kind}{self.octaves:.1f} octaves away)"


def donors(device: Hardware, engine: str) -> tuple[Donor, ...]:
    """The devices with tables that may serve another one, nearest first; none for what is not NVIDIA's.

    How near one is counts in what the hardware is, not in how fast: kernels are written for a generation of matrix
    units, and HBM behaves unlike GDDR. Speeds enter by the formula that carries a kernel over, and weights that do not
    depend on them keep a faster device faster.
    """
    if device.architecture not in MATRIX_UNITS:
        return ()
    return _nearest(device, engine, _left_out.get())


@cache_by_identity(64)
def _nearest(device: Hardware, engine: str, hidden: frozenset[str]) -> tuple[Donor, ...]:
    """The donors of a device, all but those that are hidden."""
    names = [name for name in _fitted() if name != device.name and name not in hidden]
    every = [_donor(device, known_device(name), engine) for name in names]
    return tuple(sorted(every, key=lambda donor: (donor.distance, donor.octaves)))


def _donor(device: Hardware, other: Hardware, engine: str) -> Donor:
    same_architecture = device.architecture == other.architecture
    units_apart = abs(matrix_units(device) - matrix_units(other))
    distance = 0.5 + 0.5 * (not same_architecture) + units_apart + (has_hbm(device) != has_hbm(other))
    octaves = [log2(b / a) for a, b in zip(_speeds(device), _speeds(other), strict=True) if a and b]
    stems = [engine, *(["measured"] if engine == "vllm" else []), *_fitted().get(other.name, ())]
    return Donor(
        other,
        tuple(dict.fromkeys(stems)),
        distance,
        hypot(*octaves),
        same_architecture and not units_apart,
    )


def _speeds(device: Hardware) -> tuple[float, float, float]:
    return device.memory_bandwidth, peak_flops(device), device.compute_units * device.clock


def peak_flops(device: Hardware) -> float:
    """FLOP/s of 16-bit products, of the best format where there are none: ``peak_flops(hardware("t4"))  # 6.5e13``"""
    return device.flops.get("bf16") or device.flops.get("fp16") or max(device.flops.values())


def has_hbm(device: Hardware) -> bool:
    """Whether the memory is HBM, which all figures of unknown memory are taken for."""
    return device.memory_kind[:3] in ("hbm", "")


def matrix_units(device: Hardware) -> int:
    """The generation of matrix units that kernels are written for: 0 mma.sync, 1 wgmma (Hopper), 2 tcgen05 (B200).

    Blackwell's cards with GDDR have the units of Ada, not those of a B200: ``matrix_units(hardware("rtx5090"))  # 0``
    """
    return MATRIX_UNITS.get(device.architecture, 0) if has_hbm(device) else 0


@functools.cache
def known_device(name: str) -> Hardware:
    """A catalogue device, read once: a search orders its donors hundreds of times."""
    return hardware(name)
