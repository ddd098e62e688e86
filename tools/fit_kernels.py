"""Makes src/inferometer/data/profiles/: curves of measured kernels, and surfaces fitted to them and to public tables.

    python tools/fit_kernels.py            all devices, about three minutes
    python tools/fit_kernels.py h200       one

    profiles/rtx4090/measured.json    from benchmarks/data/rtx4090_kernels.csv
    profiles/h200/measured.json       from benchmarks/data/h200_kernels*.csv
    profiles/<device>/<engine>.json   from measured/kernel_tables of the folder that INFEROMETER_SHARED names

Rows that `kernel_tables.held_out` names are not used: docs/accuracy.md says how well they are met.
"""

from __future__ import annotations

import sys

import msgspec
import numpy as np
from fit_surface import fit
from kernel_tables import ROOT, TABLES, TableRows, everything, missing, own_rows

from inferometer.costs.kernels.measured import offsets, profile_of, read_rows
from inferometer.costs.kernels.registry import KernelProfile, MeasuredCurves
from inferometer.costs.kernels.surfaces import SHAPES, Surface
from inferometer.specs import catalog
from inferometer.specs.catalog import DATA

ROWS = [0, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 11, 12, 13, 14]
SIDES = [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
AXES: dict[str, list[list[float]]] = {
    "linear": [ROWS, SIDES, SIDES],
    "decode_attention": [[*range(15)], [*range(1, 18)], [0, 1, 2, 3, 4, 5, 6, 7]],
    "prefill_attention": [[*range(4, 24)], [*range(4, 15)], [0, 2, 4, 6]],
    "moe": [[*range(-7, 14)], [16, 18, 20, 21, 22, 23, 24, 26], [0, 2, 4, 6, 8, 9], [0, 1, 3, 4.5]],
}
SMOOTH = {"linear": 0.02, "decode_attention": 0.01, "prefill_attention": 0.01, "moe": 0.01}


def coords(rows: TableRows) -> np.ndarray:
    """Coordinates of rows on their kind's axes."""
    return np.stack(SHAPES[rows.kind].coords(rows.dims), axis=1)


def ratios(rows: TableRows) -> np.ndarray:
    """What is fitted: log2 of seconds over the base."""
    return np.log2(rows.seconds / SHAPES[rows.kind].base(rows.terms, rows.dims))


def axes_of(rows: TableRows, where: np.ndarray) -> list[list[float]]:
    """The kind's axes, cut to where there are rows: beyond its last node a surface stays as it is."""
    axes = []
    for number, axis in enumerate(AXES[rows.kind]):
        low, high = where[:, number].min(), where[:, number].max()
        inside = [
            x
            for i, x in enumerate(axis)
            if (i + 1 == len(axis) or axis[i + 1] > low) and (i == 0 or axis[i - 1] < high)
        ]
        axes.append(inside if len(inside) > 1 else axis[:2])
    return axes


def surface(rows: TableRows) -> Surface:
    """The surface of a table, from the rows that may be seen."""
    seen = ~rows.unseen
    where = coords(rows)
    axes = axes_of(rows, where[seen])
    few = 5.0 if len(where) < 12_000 and rows.kind == "linear" else 1.0  # real models' weights lie on no grid
    nodes = fit(
        axes, where[seen], ratios(rows)[seen], smooth=SMOOTH[rows.kind] * few, level=1.0 if rows.kind == "moe" else 0.1
    )
    return Surface(axes, [round(float(x), 2) for x in nodes])


def steadied(kind: str, curves: MeasuredCurves, smooth: Surface) -> MeasuredCurves:
    """Curves steadied where one row says little: long products run at whatever clock the chip has at that
    moment, and a mixture's row is one draw of experts. There a node is a quarter its row, three quarters the surface.
    """
    if kind not in ("linear", "moe"):
        return curves
    shapes = {}
    for name, values in curves.shapes.items():
        sizes = [float(size) for size in name.split("x")]
        rest = (
            [np.log2(sizes[0]), np.log2(sizes[1])]
            if kind == "linear"
            else [np.log2(sizes[0] * sizes[1]), *np.log2(sizes[2:])]
        )
        shapes[name] = [
            round((value + 3 * smooth.at(x, *rest)) / 4, 3) if kind == "moe" or x >= 10 else value
            for x, value in zip(curves.axes[0], values, strict=True)
        ]
    return MeasuredCurves(curves.axes, shapes)


def placed(kind: str, curves: MeasuredCurves, able: list[Surface]) -> Surface:
    """A surface for a format of which few shapes were timed: of some surfaces the one that those scatter least around,
    moved to where they lie at each number of rows."""
    candidates: list[tuple[float, Surface]] = []
    for surface in able:
        off = np.array(offsets(surface, SHAPES[kind], curves)).reshape(len(curves.shapes), -1)
        by = np.median(off, axis=0)
        nodes = np.asarray(surface.values).reshape([len(axis) for axis in surface.axes])
        lifted = nodes + np.interp(surface.axes[0], curves.axes[0], by).reshape(-1, *[1] * (nodes.ndim - 1))
        spread = float(np.median(np.abs(off - by))) + float(np.ptp(by)) / 10  # alike, and like the surface
        candidates.append((spread, Surface(surface.axes, [round(float(x), 2) for x in lifted.ravel()])))
    return min(candidates, key=lambda one: one[0])[1]


def own() -> None:
    """The rows that were measured for this project: curves by exact shape, and surfaces for all others."""
    device = catalog.hardware("h200")
    kept = ROOT / "benchmarks" / "data"
    rows = read_rows(kept / "h200_kernels.csv") + read_rows(kept / "h200_kernels_more.csv")
    profile = profile_of(rows, device, "benchmarks/data/h200_kernels*.csv: vLLM 0.25.1 and torch 2.11 on two H200")
    fitted: dict[str, dict[str, Surface]] = {}
    for part in own_rows():
        fitted.setdefault(part.kind, {})[part.table_key] = surface(part)
        print("h200 own", part.kind, part.table_key, len(part.seconds), flush=True)
    measured = {
        kind: {
            table_key: steadied(kind, curves, fitted[kind][table_key]) if table_key in fitted[kind] else curves
            for table_key, curves in tables_of_kind.items()
        }
        for kind, tables_of_kind in profile.measured.items()
    }
    tables = msgspec.json.decode((DATA / "profiles" / "h200" / "vllm.json").read_bytes(), type=KernelProfile)
    for kind in ("linear", "moe"):
        for table_key, curves in measured[kind].items():
            if table_key not in fitted[kind]:
                able = [one for one in (tables.fitted[kind].get(table_key), fitted[kind]["bf16"]) if one is not None]
                fitted[kind][table_key] = placed(kind, curves, able)
    profile = msgspec.structs.replace(profile, fitted=fitted, measured=measured)
    (DATA / "profiles" / "h200" / "measured.json").write_bytes(msgspec.json.encode(profile) + b"\n")


def published() -> None:
    """Curves of a card that has no table: a few shapes that were timed; a relative's surfaces serve all others."""
    device = catalog.hardware("rtx4090")
    rows = read_rows(ROOT / "benchmarks" / "data" / "rtx4090_kernels.csv")
    profile = profile_of(
        rows, device, "LLMServingSim's timings of Llama-3.1-8B's kernels in vLLM 0.19.0 on one RTX 4090"
    )
    path = DATA / "profiles" / "rtx4090" / "measured.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(profile) + b"\n")


def main() -> None:
    wanted = sys.argv[1:] or list(TABLES)
    unknown = [name for name in wanted if name not in TABLES]
    if unknown:
        sys.exit(f"there is no kernel table of {' or '.join(unknown)}; there are tables of {', '.join(TABLES)}")
    published()
    own()
    if missing():
        sys.exit(f"Nothing was fitted to the public tables: {missing()}")
    for device in wanted:
        for engine, name in TABLES[device].items():
            fitted: dict[str, dict[str, Surface]] = {}
            for rows in everything(device, engine):
                fitted.setdefault(rows.kind, {})[rows.table_key] = surface(rows)
                print(device, engine, rows.kind, rows.table_key, len(rows.seconds), flush=True)
            source = f"fitted to the public kernel table {name.replace('__', ' ')}, see docs/accuracy.md"
            path = DATA / "profiles" / device / f"{engine}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(
                msgspec.json.encode(KernelProfile(device=device, source=source, rounds=True, fitted=fitted)) + b"\n"
            )


if __name__ == "__main__":
    main()
