"""Kernels by shape as sources: measured curves (●), fitted surfaces (◐; ○ of another architecture or format)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ...base.symbols import Value, maximum_of, minimum_of, scalar
from ...network.operators import Op
from ...specs.catalog import hardware
from ...specs.structs import Hardware
from .kernel_rows import head_label
from .measured import shifted_to_user_rows
from .registry import KernelProfile, MeasuredCurves, fallback_order, known_device, read_profile, same_architecture
from .source import Source, Terms
from .surfaces import SHAPES, Shape, Surface, head_table_key

# Which table serves a format that has none: its kernels are built alike, and the base has its bytes and its peak.
SIMILAR_FORMATS = {
    "fp16": ("bf16",),
    "fp32": ("bf16",),
    "fp8": ("fp8-block",),
    "fp8-block": ("fp8",),
    "mxfp8": ("fp8-block", "fp8"),
    "int8": ("fp8",),
    "w8a16": ("w4a16", "bf16"),
    "w4a16": ("mxfp4", "bf16"),
    "mxfp4": ("w4a16", "bf16"),
    "mxfp4-mxfp8": ("mxfp8", "fp8-block", "fp8", "bf16"),
    "nvfp4": ("fp8", "bf16"),
    "int4": ("w4a16", "bf16"),
    "int2": ("w4a16", "bf16"),
}


ROUNDED = ("fp8", "fp8-block", "mxfp8", "int8")  # formats in which the input is rounded before the product


class Formats(NamedTuple):
    """Number formats of a plan, as kernels know them: ``Formats({"attn": "fp8", "mlp": "fp8"}, cache="fp8")``"""

    roles: Mapping[str, str]  # role -> precision that its products run as
    cache: str = "bf16"
    rounding: Callable[[Value], Value] = lambda elements: 0.0  # s to round so many elements of an input to 8 bits


def lookup_key(op: Op, dims: Mapping[str, Value], tables: Mapping[str, object], formats: Formats) -> tuple[str, bool]:
    """The key of an operator's table, and whether it is of its own format; '' where none serves it."""
    if op.kind.endswith("_attention"):
        label = head_label(dims["qk_dim"], dims["v_dim"])
        key = head_table_key(label, tables, formats.cache)
        return key, key == label + ("-fp8" if formats.cache == "fp8" else "")
    dtype = formats.roles.get(op.role, "bf16")
    for number, similar in enumerate((dtype, *SIMILAR_FORMATS.get(dtype, ()))):
        if similar in tables:
            return similar, number == 0 or (dtype, similar) == ("fp16", "bf16")
    return "", False


class KernelLookup:
    """Seconds of the kinds of kernels that a profile has: roofline base × ratio, from curves or surfaces.

    ``KernelLookup(profile, formats, device).source()``; ``exact``: measured curves alone, at the very shape;
    ``own_format``: no table of a similar format may serve; ``user_profile``: surfaces were shifted to its rows.
    """

    def __init__(
        self,
        profile: KernelProfile,
        formats: Formats,
        device: Hardware,
        *,
        exact: bool = False,
        own_format: bool = False,
        user_profile: KernelProfile | None = None,
    ) -> None:
        self.profile, self.formats, self.exact = profile, formats, exact
        self.own_format = own_format or exact
        self.shifted = user_profile.measured if user_profile is not None else {}  # tables that lie at the user's rows
        profiled = known_device(profile.device)
        self.same_architecture = profiled.architecture == device.architecture
        self.octaves = octaves_faster(profiled, device)
        self.reach = (profiled.reach_flops / device.reach_flops, profiled.reach_memory / device.reach_memory)
        self.kinds = frozenset(profile.measured if exact else profile.fitted) & frozenset(SHAPES)

    def answer(self, op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        """Seconds of a call, nan where the profile has no such shape."""
        shape, d = SHAPES[op.kind], dims()
        if op.kind == "linear" and not (scalar(d["groups"]) and d["groups"] == 1):
            return float("nan")
        tables: Mapping[str, Any] = (self.profile.measured if self.exact else self.profile.fitted)[op.kind]
        key, own_format = lookup_key(op, d, tables, self.formats)
        if not key or (self.own_format and not own_format):
            return float("nan")
        if self.exact:
            took = shape.base(terms, d) * 2.0 ** _measured_ratio(tables[key], shape, d)
        else:
            shifted = key in self.shifted.get(op.kind, ())
            took = self._surface_seconds(tables[key], shape, d, terms, (1.0, 1.0) if shifted else self.reach)
        took = maximum_of(took, terms.roofline)
        if op.kind == "linear" and not self.profile.rounds and self.formats.roles.get(op.role) in ROUNDED:
            took = took + self.formats.rounding(d["m"] * d["k"])
        return took * (terms.memory > 0)

    def _surface_seconds(
        self, surface: Surface, shape: Shape, d: Mapping[str, Value], terms: Terms, reach: tuple[float, float]
    ) -> Value:
        """Seconds by a surface of this device, or of another one carried over to this device's peaks.

        There are two estimates for a shape that was timed on another device. ``carried``: this device's base at the
        ratio of the other's larger (or smaller) shape that keeps it busy for as long, see `Shape.coords`; ``reach`` is
        how much more of its peaks the other's best kernels reach. ``there``: what the other device itself takes for
        this very shape. Where both memory and matrix units of the other are slower, ``there`` bounds the seconds from
        above, where both are faster from below: otherwise a ratio that falls steeply along the size axis would let the
        slower device win. Where one is faster and the other slower, or the share of peak that is reached differs, data
        sheets do not say which device wins, and ``carried`` stands alone.
        """
        memory, compute = self.octaves
        if not memory and not compute:
            return shape.base(terms, d) * 2.0 ** surface.at(*shape.coords(d))
        reached = terms._replace(compute=terms.compute * reach[0], memory=terms.memory * reach[1])
        carried = shape.base(reached, d) * 2.0 ** surface.at(*shape.coords(d, self.octaves[shape.by_compute]))
        if self.reach != (1.0, 1.0) or (min(memory, compute) < 0 < max(memory, compute)):
            return carried
        other = terms._replace(compute=terms.compute / 2**compute, memory=terms.memory / 2**memory)
        there = shape.base(other, d) * 2.0 ** surface.at(*shape.coords(d))
        return minimum_of(carried, there) if max(memory, compute) <= 0 else maximum_of(carried, there)

    def origin(self, op: Op) -> str:
        """Measured, fitted, or assumed where the figures are of another architecture."""
        return "measured" if self.exact else "fitted" if self.same_architecture else "assumed"

    def note(self, op: Op) -> str:
        """Which figures they are, and of which device."""
        how = "a curve measured at this very shape" if self.exact else "a surface over shapes"
        return f"{op.kind}: {how} on {self.profile.device.upper()} ({self.profile.source})"

    def source(self) -> Source:
        """As a source among others."""
        return Source(self.origin, self.answer, self.note, self.kinds)


def _measured_ratio(curves: MeasuredCurves, shape: Shape, d: Mapping[str, Value]) -> Value:
    """Ratios from the curve of the very shape; where sizes vary over an array, from each shape's own curve."""
    sizes, coords = shape.exact_sizes(d), shape.step_axes(d)
    if scalar(*sizes):
        values = curves.shapes.get(_curve_key(sizes))
        return Surface(curves.axes, values).at(*coords) if values is not None else float("nan")
    import numpy as np

    *columns, first = np.broadcast_arrays(*sizes, coords[0])
    code = shape_codes([column for column, size in zip(columns, sizes, strict=True) if not scalar(size)])
    ratios = np.full(first.shape, np.nan)
    for one, at in zip(*np.unique(code, return_index=True), strict=True):
        values = curves.shapes.get(_curve_key([column.flat[at] for column in columns]))
        if values is not None:
            where = code == one
            ratios[where] = Surface(curves.axes, values).at(*(np.broadcast_to(x, first.shape)[where] for x in coords))
    return ratios


def _curve_key(sizes: Sequence[float]) -> str:
    return "x".join(f"{size:g}" for size in sizes)


def shape_codes(columns: Sequence[Any]) -> Any:
    """A number per row, equal where all sizes are: columns of sizes, arrays of one shape, packed as mixed-radix digits.

    A size's digit is its rank among the distinct values of its column, so every size counts in full, fractions too
    (experts over ranks), and the code stays below the product of the columns' distinct values. Where that product
    would leave 63 bits, the codes so far are ranked anew, of which there are at most as many as rows.
    """
    import numpy as np

    if len(columns) == 1:
        return columns[0]
    code, radix = np.zeros(columns[0].shape, np.int64), 1
    for column in columns:
        values, digit = np.unique(column, return_inverse=True)
        if radix * len(values) >= 2**63:
            distinct, code = np.unique(code, return_inverse=True)
            radix = len(distinct)
        code = code.reshape(column.shape) * len(values) + digit.reshape(column.shape)
        radix *= len(values)
    return code


def octaves_faster(other: Hardware, device: Hardware) -> tuple[float, float]:
    """How much faster another device's memory and matrix units are than a device's, in octaves (log2 of the ratio)."""
    peaks = [d.flops.get("bf16") or d.flops.get("fp16") or max(d.flops.values()) for d in (other, device)]
    return math.log2(other.memory_bandwidth / device.memory_bandwidth), math.log2(peaks[0] / peaks[1])


def kernel_sources(
    device: Hardware,
    engine: str,
    formats: Formats,
    *,
    kinds: tuple[str, ...] = (),
    user_profile: KernelProfile | None = None,
) -> tuple[Source, ...]:
    """What is known of a device's kernels, best first: the user's own rows, measured curves, surfaces; others' last.

    Surfaces are shifted to the user's rows, so a few shapes of an unknown GPU serve all others too. What the engine
    has of a format itself, here or on a device of the same architecture, comes before tables of a similar format.
    """
    profiles: list[tuple[KernelProfile, bool]] = []  # and whether they are this engine's on this very device
    measured = read_profile(device.name, "measured")
    if measured is not None and engine == "vllm":
        profiles.append((measured, True))
    profiles += [
        (profile, (name, maker) == (device.name, engine))
        for name, maker in fallback_order(device, engine)[:3]
        if (profile := read_profile(name, maker)) is not None
    ]
    lookups: list[KernelLookup] = []
    if user_profile is not None:
        lookups.append(KernelLookup(user_profile, formats, device, exact=True))
        profiles = [
            (shifted_to_user_rows(one, user_profile, octaves_faster(hardware(one.device), device)), own)
            for one, own in profiles
        ]
    lookups += [KernelLookup(one, formats, device, exact=True) for one, _ in profiles if one.measured]
    fitted = [(one, own) for one, own in profiles if one.fitted]
    own_format = [one for one, own in fitted if own] + (same_architecture(device) if engine == "vllm" else [])
    lookups += [KernelLookup(one, formats, device, own_format=True, user_profile=user_profile) for one in own_format]
    lookups += [KernelLookup(one, formats, device, user_profile=user_profile) for one, _ in fitted]
    chain = [lookup.source() for lookup in lookups]
    if kinds:
        chain = [source._replace(kinds=(source.kinds or frozenset()) & frozenset(kinds)) for source in chain]
    return tuple(chain)
