"""A file of measured kernels (``inferometer profile``) as a profile: curves by exact shape."""

from __future__ import annotations

import csv
import functools
import itertools
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...base.errors import BadFile
from ...specs.structs import Hardware
from .kernel_rows import figures
from .registry import Curves, Profile
from .surfaces import SHAPES, Grid, Shape

HEAD = ("kind", "dtype", "shape", "seconds", "source")
NEEDS = {  # sizes that rows of a kind must have
    "linear": ("m", "n", "k"),
    "prefill_attention": ("seqs", "heads", "kv_heads", "head_dim", "new", "context"),
    "decode_attention": ("seqs", "heads", "kv_heads", "head_dim", "context"),
    "moe": ("tokens", "hidden", "inner", "experts", "top_k"),
}


class Row(NamedTuple):
    """One kernel that was timed."""

    kind: str
    number: str
    sizes: dict[str, Any]
    seconds: float


def read_rows(path: Path) -> list[Row]:
    """The usable rows of a file; a flagged one (``… !roof`` in its source) is passed over, a broken one is an error."""
    found = []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file)
            if tuple(reader.fieldnames or ()) != HEAD:
                raise BadFile(f"{path} is not a profile of kernels: its first line must be {','.join(HEAD)}")
            for line, row in enumerate(reader, 2):
                if " !" in (row["source"] or ""):
                    continue
                try:
                    sizes = dict(_size(piece) for piece in row["shape"].split())
                    one = Row(row["kind"], row["dtype"], sizes, float(row["seconds"]))
                except (AttributeError, TypeError, ValueError):
                    raise BadFile(f"{path}, line {line}: {row} lacks a kind, dtype, shape or seconds") from None
                lacking = [word for word in NEEDS.get(one.kind, ()) if not _positive(sizes.get(word))]
                if lacking:
                    raise BadFile(
                        f"{path}, line {line}: {one.kind} needs a positive {' and '.join(lacking)}, not "
                        f"{row['shape']!r}"
                    )
                if not 0 < one.seconds < 1e4:
                    raise BadFile(f"{path}, line {line}: {row['seconds']} seconds is no kernel's time")
                found.append(one)
    except UnicodeDecodeError:
        raise BadFile(f"{path} is not a text file") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    return found


def _positive(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < 1e12


def _size(piece: str) -> tuple[str, Any]:
    key, _, value = piece.partition("=")
    try:
        return key, int(value)
    except ValueError:
        return key, value if value.isidentifier() or "-" in value else float(value)


def profile_of(rows: Iterable[Row], device: Hardware, source: str) -> Profile:
    """Curves of all rows that have a shape, as ratios to the base at this device's peaks."""
    points: dict[tuple[str, str], dict[str, dict[tuple[float, ...], float]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        found = figures(row.kind, row.number, row.sizes, device)
        if found is None or "skew" in row.sizes or "window" in row.sizes:
            continue
        shape = SHAPES[row.kind]
        key = "x".join(f"{size:g}" for size in shape.exact(found.dims))
        place = tuple(round(float(x), 4) for x in shape.along(found.dims))
        points[row.kind, found.sheet][key][place] = _log2(row.seconds / shape.base(found.terms, found.dims))
    measured: dict[str, dict[str, Curves]] = {}
    for (kind, sheet), shapes in points.items():
        measured.setdefault(kind, {})[sheet] = _curves(shapes)
    return Profile(device=device.name, source=source, measured=measured)


def _curves(shapes: dict[str, dict[tuple[float, ...], float]]) -> Curves:
    """All shapes on one set of axes; a place that was not measured has the value of the nearest one that was."""
    places = sorted({place for known in shapes.values() for place in known})
    axes = [sorted({place[i] for place in places}) for i in range(len(places[0]))]
    axes = [_thinned(axis) for axis in axes]
    return Curves(axes, {key: _on_axes(axes, known) for key, known in shapes.items()})


def _thinned(axis: list[float]) -> list[float]:
    """Nodes at least a sixteenth of an octave apart."""
    found = axis[:1]
    for x in axis[1:]:
        if x - found[-1] >= 1 / 16:
            found.append(x)
    return found


def _on_axes(axes: list[list[float]], known: dict[tuple[float, ...], float]) -> list[float]:
    import numpy as np

    if len(axes) == 1:
        place = sorted(known)
        values = np.interp(axes[0], [p[0] for p in place], [known[p] for p in place])
    else:
        nodes = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)
        there, ratio = np.array(list(known)), np.array(list(known.values()))
        values = np.array([_near(node, there, ratio) for node in nodes])
    return [round(float(x), 3) for x in values]


def _near(node: Any, there: Any, ratio: Any) -> float:
    """The mean of the nearest rows around a node, the near ones counting far more."""
    import numpy as np

    far = ((there - node) ** 2).sum(axis=1)
    weight = 1 / (far + 1e-4) ** 2
    return float((weight * ratio).sum() / np.sum(weight))


def _log2(x: float) -> float:
    from math import log2

    return log2(x)


@functools.lru_cache(maxsize=64)
def moved(surfaces: Profile, mine: Profile, faster: tuple[float, float]) -> Profile:
    """Surfaces raised or lowered, kind by kind and format by format, by the median of what the user's rows say."""
    fitted = {}
    for kind, sheets in surfaces.fitted.items():
        shape = SHAPES[kind]
        fitted[kind] = dict(sheets)
        for sheet, curves in mine.measured.get(kind, {}).items():
            if sheet in sheets:
                off = sorted(offsets(sheets[sheet], shape, curves, faster[shape.compute]))
                by = off[len(off) // 2]
                fitted[kind][sheet] = Grid(sheets[sheet].axes, [value + by for value in sheets[sheet].values])
    return msgspec.structs.replace(surfaces, fitted=fitted, measured={})


def offsets(surface: Grid, shape: Shape, curves: Curves, faster: float) -> list[float]:
    """How far the nodes of measured curves lie above a surface, in octaves."""
    found = []
    for name, values in curves.shapes.items():
        rest = shape.fixed(tuple(float(size) for size in name.split("x")))
        for place, value in zip(itertools.product(*curves.axes), values, strict=True):
            where = [*place, *rest]
            where[shape.wide] += faster
            found.append(value - float(surface.at(*where)))
    return found
