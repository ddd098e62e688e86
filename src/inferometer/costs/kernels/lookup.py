"""Kernels by shape as sources: curves that were measured (●), surfaces that were fitted (◐; ○ of a far relative)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ...base.symbols import Value, minimum_of, maximum_of, scalar
from ...network.operators import Op
from ...specs.catalog import hardware
from ...specs.structs import Hardware
from .kernel_rows import head_label
from .measured import moved
from .registry import Curves, Profile, kin, known_device, read, relatives
from .source import Source, Terms
from .surfaces import SHAPES, Grid, Shape, head_sheet

# Which sheet serves a format that has none: its kernels are built alike, and the base knows its bytes and its peak.
LIKE = {
    "fp16": ("bf16",),
    "fp32": ("bf16",),
    "fp8": ("fp8-block",),
    "fp8-block": ("fp8",),
    "mxfp8": ("fp8-block", "fp8"),
    "int8": ("fp8",),
    "w8a16": ("w4a16", "bf16"),
    "w4a16": ("mxfp4", "bf16"),
    "mxfp4": ("w4a16", "bf16"),
    "nvfp4": ("fp8", "bf16"),
    "int4": ("w4a16", "bf16"),
    "int2": ("w4a16", "bf16"),
}


ROUNDED = ("fp8", "fp8-block", "mxfp8", "int8")  # formats whose input is rounded before the product


class Formats(NamedTuple):
    """Number formats of a plan, as kernels know them."""

    roles: Mapping[str, str]  # role -> precision that its products run as
    cache: str = "bf16"
    rounding: Callable[[Value], Value] = lambda elements: 0.0  # s to round so many elements of an input to 8 bits


def sheet_of(op: Op, dims: Mapping[str, Value], known: Mapping[str, object], formats: Formats) -> tuple[str, bool]:
    """The sheet of an operator among the known ones, and whether it is its own; '' where there is none."""
    if op.kind.endswith("_attention"):
        label = head_label(dims["qk_dim"], dims["v_dim"])
        found = head_sheet(label, known, formats.cache)
        return found, found == label + ("-fp8" if formats.cache == "fp8" else "")
    wanted = formats.roles.get(op.role, "bf16")
    for number, word in enumerate((wanted, *LIKE.get(wanted, ()))):
        if word in known:
            return word, number == 0 or (wanted, word) == ("fp16", "bf16")
    return "", False


class Kernels:
    """Answers for the kinds of kernels that a profile has, with ratios from curves or surfaces."""

    def __init__(
        self,
        profile: Profile,
        formats: Formats,
        device: Hardware,
        *,
        exact: bool = False,
        own: bool = False,
        moved_by: Profile | None = None,
    ) -> None:
        self.profile, self.formats, self.exact = profile, formats, exact
        self.own = own or exact  # no sheet of another format may stand in
        self.moved = moved_by.measured if moved_by is not None else {}  # what lies where the user's rows do
        whose = known_device(profile.device)
        self.near = whose.architecture == device.architecture
        self.faster = octaves_faster(whose, device)
        self.reach = (whose.reach_flops / device.reach_flops, whose.reach_memory / device.reach_memory)
        self.kinds = frozenset(profile.measured if exact else profile.fitted) & frozenset(SHAPES)

    def answer(self, op: Op, dims: Callable[[], dict[str, Value]], terms: Terms) -> Value:
        """Seconds of a call, nan where the profile has no such shape."""
        shape, d = SHAPES[op.kind], dims()
        if op.kind == "linear" and not (scalar(d["groups"]) and d["groups"] == 1):
            return float("nan")
        tables: Mapping[str, Any] = (self.profile.measured if self.exact else self.profile.fitted)[op.kind]
        sheet, own = sheet_of(op, d, tables, self.formats)
        if not sheet or (self.own and not own):
            return float("nan")
        if self.exact:
            took = shape.base(terms, d) * 2.0 ** _exact(tables[sheet], shape, d)
        else:
            placed = sheet in self.moved.get(op.kind, ())
            took = self._surface(tables[sheet], shape, d, terms, (1.0, 1.0) if placed else self.reach)
        took = maximum_of(took, terms.roofline)
        if op.kind == "linear" and not self.profile.rounds and self.formats.roles.get(op.role) in ROUNDED:
            took = took + self.formats.rounding(d["m"] * d["k"])
        return took * (terms.memory > 0)

    def _surface(
        self, surface: Grid, shape: Shape, d: Mapping[str, Value], terms: Terms, share: tuple[float, float]
    ) -> Value:
        """Seconds by a surface of this device or of a relative, which is never beaten by a slower device.

        ``share``: how much more of its peaks the relative's best kernels reach than this device's do.
        """
        memory, compute = self.faster
        if not memory and not compute:
            return shape.base(terms, d) * 2.0 ** surface.at(*shape.places(d))
        reach = terms._replace(compute=terms.compute * share[0], memory=terms.memory * share[1])
        took = shape.base(reach, d) * 2.0 ** surface.at(*shape.places(d, self.faster[shape.compute]))
        theirs = terms._replace(compute=terms.compute / 2**compute, memory=terms.memory / 2**memory)
        there = shape.base(theirs, d) * 2.0 ** surface.at(*shape.places(d))
        if self.reach == (1.0, 1.0) and memory <= 0 and compute <= 0:
            return minimum_of(took, there)
        return maximum_of(took, there) if self.reach == (1.0, 1.0) and memory >= 0 and compute >= 0 else took

    def origin(self, op: Op) -> str:
        """Measured, fitted, or assumed where the figures are of another format or generation."""
        return "measured" if self.exact else "fitted" if self.near else "assumed"

    def note(self, op: Op) -> str:
        """Whose figures they are."""
        how = "a curve measured at this very shape" if self.exact else "a surface over shapes"
        return f"{op.kind}: {how} on {self.profile.device.upper()} ({self.profile.source})"

    def source(self) -> Source:
        """As a source among others."""
        return Source(self.origin, self.answer, self.note, self.kinds)


def _exact(curves: Curves, shape: Shape, d: Mapping[str, Value]) -> Value:
    """Ratios from the curve of the very shape; where shapes vary over an array, from each one's own."""
    fixed, along = shape.exact(d), shape.along(d)
    if scalar(*fixed):
        values = curves.shapes.get("x".join(f"{size:g}" for size in fixed))
        return Grid(curves.axes, values).at(*along) if values is not None else float("nan")
    import numpy as np

    *sizes, first = np.broadcast_arrays(*fixed, along[0])
    code = sizes[0].astype(np.int64)
    for size in sizes[1:]:
        code = code * 1_048_583 + size.astype(np.int64)
    found = np.full(first.shape, np.nan)
    ones, index = np.unique(code, return_index=True)
    for one, at in zip(ones, index, strict=True):
        values = curves.shapes.get("x".join(f"{size.flat[at]:g}" for size in sizes))
        if values is not None:
            where = code == one
            found[where] = Grid(curves.axes, values).at(*(np.broadcast_to(x, first.shape)[where] for x in along))
    return found


def octaves_faster(whose: Hardware, device: Hardware) -> tuple[float, float]:
    """How much faster the one's memory and the one's matrix units are than the other's, in octaves."""
    peaks = [d.flops.get("bf16") or d.flops.get("fp16") or max(d.flops.values()) for d in (whose, device)]
    return math.log2(whose.memory_bandwidth / device.memory_bandwidth), math.log2(peaks[0] / peaks[1])


def by_shape(
    device: Hardware, whose: str, formats: Formats, kinds: tuple[str, ...] = (), mine: Profile | None = None
) -> tuple[Source, ...]:
    """What is known of a device's kernels, best first: the user's own rows, measured curves, surfaces; relatives' last.

    Surfaces are moved to where the user's rows lie, so a few shapes of an unknown GPU serve all others too. What the
    engine has of a format itself, here or on a device of the same architecture, comes before what was measured of a
    format like it.
    """
    shelf: list[tuple[Profile, bool]] = []  # and whether they are this engine's on this very device
    measured = read(device.name, "measured")
    if measured is not None and whose == "vllm":
        shelf.append((measured, True))
    shelf += [
        (one, (name, engine) == (device.name, whose))
        for name, engine in relatives(device, whose)[:3]
        if (one := read(name, engine)) is not None
    ]
    found: list[Source] = []
    if mine is not None:
        found.append(Kernels(mine, formats, device, exact=True).source())
        shelf = [(moved(one, mine, octaves_faster(hardware(one.device), device)), own) for one, own in shelf]
    fitted = [(one, own) for one, own in shelf if one.fitted]
    found += [Kernels(one, formats, device, exact=True).source() for one, _ in shelf if one.measured]
    same = [one for one, own in fitted if own] + (kin(device) if whose == "vllm" else [])
    found += [Kernels(one, formats, device, own=True, moved_by=mine).source() for one in same]
    found += [Kernels(one, formats, device, moved_by=mine).source() for one, _ in fitted]
    if kinds:
        found = [s._replace(kinds=(s.kinds or frozenset()) & frozenset(kinds)) for s in found]
    return tuple(found)
