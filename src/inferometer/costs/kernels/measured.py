"""A file of measured kernels (``inferometer profile``) as a kernel profile: curves by exact shape."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import log2
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...base.errors import BadFile, abbreviate
from ...base.files import input_path, read_json
from ...base.symbols import Value
from ...specs.device_names import is_same
from ...specs.structs import Hardware
from .kernel_rows import HEADER, is_flagged, parse_shape, required_sizes, row_terms
from .registry import KernelProfile, MeasuredCurves, TimedRow
from .surfaces import SHAPES, Shape, Surface

if TYPE_CHECKING:
    from ...base.tabular import TableChunk

LayerReader = Callable[["TableChunk"], list["MeasuredKernel"]]
LAYER_COLUMNS = {"hardware", "model", "layer_name"}  # of `profile MODEL` and LLM-Profile
BEYOND = 0.8  # of the roofline: a row that is faster than this was not timed on the device, or not timed at all
UNUSED = {"skew", "window", "method"}  # sizes of rows that no operator is looked up by
MAX_KERNELS = 2_000_000  # of a profile: something that never ends has more


class MeasuredKernel(NamedTuple):
    """One kernel that was timed: ``MeasuredKernel("linear", "bf16", {"m": 8, "n": 4096, "k": 4096}, 1.1e-5)``"""

    kind: str
    dtype: str
    sizes: dict[str, Any]
    seconds: float


def read_rows(path: Path, read_layers: LayerReader | None = None) -> list[MeasuredKernel]:
    """The usable rows of a file; a flagged one (``… !roof`` in its source) is passed over, a broken one is an error.

    ``read_layers`` reads a table of a model's layers instead, whose sizes follow from the model.
    """
    from ...base.tabular import open_table  # loads NumPy

    with open_table(path) as table:
        if read_layers is not None and set(table.names) >= LAYER_COLUMNS:
            return read_layers(table.whole(MAX_KERNELS))
        if tuple(table.names) != HEADER:
            raise BadFile(f"{path} is not a profile of kernels: its first line must be {','.join(HEADER)}")
        kernels: list[MeasuredKernel] = []
        for chunk in table.chunks(HEADER):
            rows = zip(*(chunk.columns[name] for name in HEADER), strict=True)
            kernels += [
                _kernel(dict(zip(HEADER, row, strict=True)), f"{path}, line {line}")
                for line, row in zip(chunk.lines, rows, strict=True)
                if not is_flagged(str(row[-1] or ""))
            ]
            if len(kernels) > MAX_KERNELS:
                raise BadFile(f"{path} has more than {MAX_KERNELS:,} kernels")
        return kernels


def _kernel(row: dict[str, Any], where: str) -> MeasuredKernel:
    """A row of the file; only kinds that predictions look up by shape must have all of their sizes."""
    try:
        kernel = MeasuredKernel(row["kind"], row["dtype"], parse_shape(row["shape"]), float(row["seconds"]))
    except (AttributeError, TypeError, ValueError):
        raise BadFile(f"{where}: {row} lacks a kind, dtype, shape or seconds") from None
    sizes = required_sizes(kernel.kind) if kernel.kind in SHAPES else ()
    missing = [name for name in sizes if not _is_size(kernel.sizes.get(name))]
    if missing:
        raise BadFile(f"{where}: {kernel.kind} needs a positive {' and '.join(missing)}, not {row['shape']!r}")
    if not 0 < kernel.seconds < 1e4:
        raise BadFile(f"{where}: {row['seconds']} seconds cannot be a kernel's time")
    return kernel


def _is_size(value: Any) -> bool:
    return isinstance(value, int | float) and 0 < value < 1e12


Coords = tuple[float, ...]


def profile_of(
    rows: Iterable[MeasuredKernel],
    device: Hardware,
    source: str,
    *,
    keep_rows: bool = False,
    surfaces: Mapping[tuple[str, str], Surface] | None = None,
) -> KernelProfile:
    """Curves of all rows that have a shape, as ratios to the base at this device's peaks.

    ``profile_of(read_rows(Path("kernels.csv")), catalog.hardware("h200"), "kernels.csv").measured["linear"]["bf16"]``

    ``surfaces`` of a kind and a table say how a curve goes on between rows that lie far apart on two axes.
    """
    ratios: dict[tuple[str, str], dict[str, dict[Coords, float]]] = defaultdict(lambda: defaultdict(dict))
    kept: list[TimedRow] = []
    count = beyond = 0
    for row in rows:
        count += 1
        terms = row_terms(row.kind, row.dtype, row.sizes, device)
        if terms is None or UNUSED & row.sizes.keys():
            continue
        if keep_rows and row.seconds < BEYOND * terms.terms.roofline:
            beyond += 1
            continue
        shape = SHAPES[row.kind]
        key = "x".join(f"{size:g}" for size in shape.exact_sizes(terms.dims))
        coords = tuple(round(float(x), 4) for x in shape.step_axes(terms.dims))
        ratios[row.kind, terms.table_key][key][coords] = log2(row.seconds / shape.base(terms.terms, terms.dims))
        kept.append(
            TimedRow(row.kind, terms.table_key, terms.dims, terms.terms.compute, terms.terms.memory, row.seconds)
        )
    measured: dict[str, dict[str, MeasuredCurves]] = {}
    for (kind, table_key), shapes in ratios.items():
        measured.setdefault(kind, {})[table_key] = _curves(
            shapes, SHAPES[kind], (surfaces or {}).get((kind, table_key))
        )
    warnings = [f"{beyond:,} of {count:,} rows of {source} are faster than {device.name} can be, and are not used"]
    return KernelProfile(
        device=device.name,
        source=source,
        measured=measured,
        rows=tuple(kept) if keep_rows else (),
        warnings=tuple(warnings if beyond else ()),
    )


def user_profile(path: str, device: Hardware, read_layers: LayerReader | None = None) -> KernelProfile:
    """A user's own file, with its rows: ``user_profile("kernels.csv", catalog.hardware("h200"))``

    Rows beyond the device's roofline are left out, and a record beside the file that names another device is a warning.
    """
    place = input_path(path)
    profile = profile_of(read_rows(place, read_layers), device, path, keep_rows=True)
    others = [abbreviate(name) for name in _recorded_devices(place) if not is_same(name, device)]
    if not others:
        return profile
    warning = f"the kernels of {path} were measured on {' and '.join(others)}, not on {device.name}"
    return msgspec.structs.replace(profile, warnings=(warning, *profile.warnings))


def record_beside(path: Path) -> dict[str, Any]:
    """What measuring noted on a file: ``record_beside(Path("H200/tiny.scaled.csv"))`` reads H200/tiny.json."""
    place = path.with_name(path.stem.removesuffix(".scaled") + ".json")
    try:
        return read_json(place) if place.is_file() else {}
    except BadFile:  # a file of another kind that happens to have the name
        return {}


def _recorded_devices(path: Path) -> list[str]:
    """The devices that the record beside a profile names (measuring writes one): its own, and of imported tables."""
    record = record_beside(path)
    tables = [table for run in _tables(record.get("runs")) for table in _tables(run.get("imported"))]
    names = [record.get("gpu") or record.get("device"), *(table.get("device") for table in tables)]
    return list(dict.fromkeys(str(name) for name in names if name))


def _tables(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _curves(shapes: dict[str, dict[Coords, float]], shape: Shape, surface: Surface | None = None) -> MeasuredCurves:
    """All shapes on one set of axes; a node that was not measured has the value of the nearest one that was.

    With a surface it is as far from it as the nearest one that was measured.
    """
    nodes = sorted({coords for ratios in shapes.values() for coords in ratios})
    axes = [_thinned(sorted({coords[i] for coords in nodes})) for i in range(len(nodes[0]))]
    curves = {}
    for key, ratios in shapes.items():
        fixed = shape.fixed_coords(tuple(float(size) for size in key.split("x")))
        curves[key] = _on_axes(axes, ratios, partial(_level, surface, fixed))
    return MeasuredCurves(axes, curves)


def _level(surface: Surface | None, fixed: tuple[Value, ...], node: Coords) -> float:
    return 0.0 if surface is None else float(surface.at(*node, *fixed))


def _thinned(axis: list[float]) -> list[float]:
    """Nodes at least a sixteenth of an octave apart."""
    nodes = axis[:1]
    for x in axis[1:]:
        if x - nodes[-1] >= 1 / 16:
            nodes.append(x)
    return nodes


def _on_axes(axes: list[list[float]], ratios: dict[Coords, float], level: Callable[[Coords], float]) -> list[float]:
    import numpy as np

    if len(axes) == 1:
        coords = sorted(ratios)
        values = np.interp(axes[0], [x[0] for x in coords], [ratios[x] for x in coords])
    else:
        nodes = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")], axis=1)  # (nodes, axes)
        measured = np.array(list(ratios))  # (rows, axes)
        ratio = np.array([value - level(coords) for coords, value in ratios.items()])
        values = np.array([_nearest(node, measured, ratio) + level(tuple(node)) for node in nodes])
    return [round(float(x), 3) for x in values]


def _nearest(node: Any, measured: Any, ratio: Any) -> float:
    """The mean of the rows around a node, weighted by the inverse fourth power of their distance."""
    import numpy as np

    squared = ((measured - node) ** 2).sum(axis=1)
    weight = 1 / (squared + 1e-4) ** 2
    return float((weight * ratio).sum() / np.sum(weight))


def offsets(surface: Surface, shape: Shape, curves: MeasuredCurves) -> list[float]:
    """How far the nodes of measured curves lie above a surface, in octaves."""
    off = []
    for name, values in curves.shapes.items():
        fixed = shape.fixed_coords(tuple(float(size) for size in name.split("x")))
        for node, value in zip(itertools.product(*curves.axes), values, strict=True):
            off.append(value - float(surface.at(*node, *fixed)))
    return off
