"""What the device at hand cannot do: figures beyond it are mistakes of the clock, and are refused.

The peaks are the catalogue's where it knows the device by the name that its driver gives; of another the bandwidth is
found by copying. A CPU has no roof here: its caches hold more than rotates, and its clock is not its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ..specs import catalog
from ..specs.structs import Hardware
from . import roofline_limits, timer
from .machine import recognise
from .microbenchmarks import Bench
from .quality import GRACE

COPY = 1 << 28  # bytes of the copy that finds a bandwidth: read and written
REACH = 0.8  # share of its bandwidth that a copy reaches at least
SIMILAR = 0.12  # how far a device's memory may be from the catalogue's for the name to mean it


class Limits(NamedTuple):
    """The peaks of a device: ``limits.least(row, cold=1e6)`` are the seconds that no call of a row can beat."""

    bandwidth: float = float("inf")  # bytes/s
    device: Hardware | None = None  # for its FLOP/s and its links

    def least(self, row: Mapping[str, Any], cold: float = 0.0) -> float:
        """Seconds that a row needs at least; ``cold`` bytes of it must come from memory, since they rotate."""
        found = cold / self.bandwidth
        if self.device is not None:
            found = max(found, work(row, msgspec.structs.replace(self.device, memory_bandwidth=1e30)))
        return found

    def refuses(self, row: Mapping[str, Any], seconds: float, cold: float = 0.0) -> bool:
        """Whether a figure is beyond the roof."""
        return seconds < GRACE * self.least(row, cold)

    def said(self) -> dict[str, Any]:
        """For the record."""
        if self.bandwidth == float("inf"):
            return {"roof": None}
        return {"roof": {"bandwidth": self.bandwidth, "peaks": self.device.name if self.device else "measured copy"}}


def work(row: Mapping[str, Any], device: Hardware) -> float:
    """The roofline seconds of a row on a device, 0 for a kind that has none."""
    dims = {key: value for key, value in row.items() if key not in ("kind", "dtype")}
    try:
        return float(roofline_limits.seconds(row["kind"], row["dtype"], dims, device).max())
    except KeyError:  # launches are no work
        return 0.0


def find(bench: Bench, machine: Mapping[str, Any]) -> Limits:
    """The limits of the machine at hand."""
    if not bench.gpu:
        return Limits()
    device = known(str(machine["device"]), float(machine["memory"]))
    if device is not None:
        return Limits(device.memory_bandwidth, device)
    return Limits(copied(bench) / REACH)


def known(name: str, memory: float) -> Hardware | None:
    """The catalogue's device of a driver's name: ``known("NVIDIA H100 80GB HBM3", 85e9).name  # 'h100-sxm'``

    One whose memory is another (a slice of a GPU, a variant) has peaks of its own, and is not it.
    """
    found = recognise(name)
    device = catalog.hardware(found) if found else None
    return device if device is not None and abs(device.memory / memory - 1) < SIMILAR else None


def copied(bench: Bench) -> float:
    """Bytes/s of a large copy inside the device, those read and those written."""
    rows = [(bench.random(COPY // 4), bench.random(COPY // 4)) for _ in range(2)]
    calls = [partial(target.copy_, source) for source, target in rows]
    return COPY / timer.seconds(bench.torch, calls, bench.device)
