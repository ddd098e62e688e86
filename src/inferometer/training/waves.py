"""How full a device is while it runs a product: output tiles in waves over its compute units.

A product of 2,048 × 6,144 outputs is 384 tiles of 128 × 256, which 108 units compute in 4 waves of which the last is
half empty: fill(2048, 6144, 1, 108) = 0.89. One curve for all sizes, instead of an efficiency for each.
"""

from __future__ import annotations

from collections.abc import Callable

from ..base.symbols import Value, maximum_of, scalar
from ..costs.kernels import Source, Terms, assumed
from ..network.operators import Op
from ..specs.structs import Engine, Hardware

TILES = ((128, 256), (256, 128))  # the usual large tiles of 16-bit products on tensor cores; the better one is taken


def _ceil(value: Value) -> Value:
    return -(-value // 1)


def fill(m: Value, n: Value, groups: Value, units: int) -> Value:
    """Mean share of the compute units that work; a product with fewer tiles than units is split along k instead."""
    best: Value = 0.0
    for high, wide in TILES:
        tiles = _ceil(m / high) * _ceil(n / wide) * groups
        best = maximum_of(best, tiles / (maximum_of(_ceil(tiles / units), 1) * units))
    if scalar(best):
        return best if tiles >= units else 1.0
    import numpy as np

    return np.where(tiles >= units, best, 1.0)


def waves(engine: Engine, device: Hardware) -> Source:
    """The engine's figure for products, at the mean occupancy of the device."""
    base = assumed(engine)

    def answer(op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        d = dims()
        share = fill(d["m"], d["n"], d["groups"], device.compute_units)
        return base.answer(op, dims, terms._replace(compute=terms.compute / share))

    def note(op: Op) -> str:
        return f"{base.note(op)}, in waves of tiles over {device.compute_units} units"

    return Source("assumed", answer, note, frozenset({"linear"}))
