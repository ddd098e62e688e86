"""Makes src/inferometer/data/profiles/: curves of measured kernels, and surfaces fitted to them and to public tables.

    python tools/fit_kernels.py            all devices, about five minutes
    python tools/fit_kernels.py h200       one
    python tools/fit_kernels.py h200 moe   of one, some kinds; the others stay as they are
    python tools/fit_kernels.py own        our own rows alone, a minute: after a file was added to benchmarks/data
    python tools/fit_kernels.py own moe    of these, some kinds; the others stay as they are

    profiles/rtx4090/measured.json    from benchmarks/data/rtx4090_kernels.csv
    profiles/b200/measured.json       from benchmarks/data/gb200_router_fp32.csv
    profiles/h200/measured.json       from benchmarks/data/h200_kernels*.csv
    profiles/<device>/<engine>.json   from AIConfigurator's kernel tables (Apache-2.0), where they are

Those tables are not part of the repository: they are looked for in measured/kernel_tables of the folder that
INFEROMETER_SHARED names, and without them the files that were fitted to them stay as they are.
Rows that `kernel_tables.held_out` names are not used: docs/accuracy.md says how well they are met.
"""

from __future__ import annotations

import math
import sys

import carried_experts
import msgspec
import numpy as np
from fit_surface import fit, rising
from kernel_tables import ROOT, TABLES, TableRows, absent, everything, missing, own_rows, without_start
from monotone import TOLERANCE, Least, base_at, constraints, raised, worst_fall

from inferometer.base.symbols import Value
from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.measured import offsets, profile_of, read_rows
from inferometer.costs.kernels.registry import KernelProfile, MeasuredCurves
from inferometer.costs.kernels.surfaces import SHAPES, RowTiles, SplitTiles, Surface
from inferometer.specs import catalog
from inferometer.specs.catalog import DATA
from inferometer.specs.structs import Hardware

ROWS = [0, 1, 2, 3, 4, 4.5, 5, 5.5, 6, 6.5, 7, 7.5, 8, 8.5, 9, 9.5, 10, 11, 12, 13, 14]
SIDES = [6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]
AXES: dict[str, list[list[float]]] = {
    "linear": [ROWS, SIDES, SIDES],
    "decode_attention": [[*range(15)], [*range(1, 18)], [0, 1, 2, 3, 4, 5, 6, 7]],
    "prefill_attention": [[*range(4, 24)], [*range(4, 15)], [0, 2, 4, 6]],
    "moe": [[*range(-7, 14)], [16, 18, 20, 21, 22, 23, 24, 26], [0, 2, 4, 6, 8, 9], [0, 1, 3, 4.5]],
    "chunk_scan": [[*range(10, 23)], [0, 3, 6], [6, 6.32, 7], [7, 8], [7, 8]],
    "state_update": [[*range(4, 18)], [6, 6.32, 7], [7, 8]],
    "sampler": [[*range(11)], [14, 15, 16, 17, 18, 19]],
}
BLOCKS = (16, 64, 128, 256, 512, 1024)  # rows of 8-bit products above which another kernel is chosen, or more tiles
SMALL = 2  # of these, those below the kernel that `row_tiles` is about
JUMPS = tuple(round(math.log2(rows + 1), 4) for rows in BLOCKS)  # the first size of the next kernel
# CUTLASS takes a fifth longer for 24 rows than for 64; public tables have only odd numbers of rows between such sizes,
# which are slower than any even one, so that their surfaces rise
FALLING = (0,)
# vLLM v0.25.1 csrc/quantization/w8a8/cutlass/c3x/scaled_mm_sm90_fp8_dispatch.cuh: above 128 rows tiles of 128 x 128, a
# cluster of two along the rows. Where inputs are few and where the GPU is half empty, public tables show no more time.
TILES = RowTiles(
    above=128,
    rows=256,
    outputs=128,
    at_once=66,
    filled=[0.0, 0.125, 0.25, 0.375, 0.5, 0.502, 0.625, 0.75, 0.86, 1.0],
    extra=[0.0] * 10,
    inputs=(512, 2048),
    source="CUTLASS' sm90_fp8_config_default in vLLM 0.25.1; extra fitted to benchmarks/data/h200_kernels_fp8_rows.csv",
)
REACHED = 0.9  # of a device's bandwidth, at which a cache is read
SPLITS = {  # head size of 16-bit caches and 8-bit ones -> positions of a block, s of a piece, of a block and of a call
    "64": (192, 1.75e-6, 1.4e-6, 6.6e-6),
    "128": (128, 2.0e-6, 1.4e-6, 7.6e-6),
    "256": (80, 3.0e-6, 2.0e-6, 7.5e-6),
    "128-fp8": (160, 2.8e-6, 1.6e-6, 6.6e-6),
}
# Local experts and their width that vLLM v0.25.1 has launch settings for on an H200 in 16 bit: names of the files in
# vllm/model_executor/layers/fused_moe/configs. All others run with the rules of `get_default_config` there, which take
# as long where weights are read, and up to a fifth longer where there are hundreds of rows for each expert.
TUNED_EXPERTS = {
    "bf16": [
        *((8, width) for width in (1792, 2048, 3584, 4096, 7168, 14336)),
        *((16, width) for width in (1024, 2048)),
        *((64, width) for width in (320, 640, 1280, 2560)),
        *((128, width) for width in (96, 192, 384, 512, 768, 1024)),
        *((512, width) for width in (64, 128, 256, 512)),
    ]
}
CURVE_WEIGHTS = ((28672, 4096), (4096, 4096))  # of that file's four, those that the curve is fitted to
EIGHT_BIT = ("fp8", "fp8-block", "mxfp8", "nvfp4")
FP8_ROWS = ROOT / "benchmarks" / "data" / "h200_kernels_fp8_rows.csv"
OWN = [kind for kind in AXES if kind != "sampler"]  # an engine's sampler is more kernels than were timed: 60 µs a step
SMOOTH = dict.fromkeys(AXES, 0.01) | {"linear": 0.02}


def split_tiles(device: str) -> dict[str, SplitTiles]:
    """FlashAttention 3's decode kernels in steps within CUDA graphs, by head size, as vLLM's fork has them.

    hopper/flash_prepare_scheduler.cu says how many pieces there are, hopper/tile_size.h how large blocks are. The
    seconds of 64 and 128 meet 650 calls with contexts as servers have them within 2% if every piece is scheduled
    (benchmarks/data/h200_uneven_attention.csv); the others are fitted to calls of one context.
    """
    return {
        key: SplitTiles(
            block=block,
            start=start,
            each=each,
            fixed=fixed,
            at_once=132,
            read=1 / (REACHED * catalog.hardware(device).memory_bandwidth),
            width=1.0 if key.endswith("-fp8") else 2.0,
            source="flash_prepare_scheduler.cu of vLLM's FlashAttention 3; seconds fitted to benchmarks/data",
        )
        for key, (block, start, each, fixed) in SPLITS.items()
    }


def coords(rows: TableRows) -> np.ndarray:
    """Coordinates of rows on their kind's axes."""
    return np.stack(SHAPES[rows.kind].coords(rows.dims), axis=1)


def ratios(rows: TableRows, tiles: RowTiles | None = None) -> np.ndarray:
    """What is fitted: log2 of seconds over the base."""
    terms = rows.terms if tiles is None else tiles.worked(rows.dims, rows.terms)[1]
    return np.log2(rows.seconds / SHAPES[rows.kind].base(terms, rows.dims))


def axes_of(rows: TableRows, where: np.ndarray, jumps: tuple[float, ...] = JUMPS) -> list[list[float]]:
    """The kind's axes, cut to where there are rows: beyond its last node a surface stays as it is."""
    axes = []
    whole = [list(axis) for axis in AXES[rows.kind]]
    if rows.kind == "linear" and rows.table_key in EIGHT_BIT and np.isin(jumps, np.round(where[:, 0], 4)).any():
        whole[0] = sorted({*whole[0], *jumps})
    for number, axis in enumerate(whole):
        low, high = where[:, number].min(), where[:, number].max()
        inside = [
            x
            for i, x in enumerate(axis)
            if (i + 1 == len(axis) or axis[i + 1] > low) and (i == 0 or axis[i - 1] < high)
        ]
        axes.append(inside if len(inside) > 1 else axis[:2])
    return axes


def surface(rows: TableRows, tiles: RowTiles | None = None) -> Surface:
    """The surface of a table, from the rows that may be seen, with tiles from those that fill them.

    Seconds rise along its axes; of our own rows that run in tiles only with the weights.
    """
    falling = FALLING if tiles is not None and rows.engine == "own" else ()
    seen = ~rows.unseen if tiles is None else ~rows.unseen & fills(rows.dims["m"], tiles)
    where = coords(rows)
    axes = axes_of(rows, where[seen], JUMPS if tiles is None else JUMPS[:SMALL])
    few = 5.0 if len(where) < 12_000 and rows.kind == "linear" else 1.0  # real models' weights lie on no grid
    level = 1.0 if rows.kind == "moe" else 0.1
    floors = constraints(rows.kind, rows.table_key, catalog.hardware(rows.device), axes, falling=falling)
    values = ratios(rows, tiles)[seen]
    nodes = fit(axes, where[seen], values, smooth=SMOOTH[rows.kind] * few, level=level, floors=floors)
    return rounded(axes, nodes, floors, f"{rows.device} {rows.engine} {rows.kind} {rows.table_key}")


def rounded(axes: list[list[float]], nodes: np.ndarray, floors: Least, name: str) -> Surface:
    """A surface of nodes that were fitted, kept to a hundredth of an octave; fails if seconds fall along an axis."""
    kept = np.round(raised(nodes, floors), 2)
    if worst_fall(kept, floors) > TOLERANCE:
        sys.exit(f"{name}: seconds fall by {2 ** worst_fall(kept, floors) - 1:.1%} as work grows")
    return Surface(axes, kept.tolist())


def steadied(kind: str, table_key: str, curves: MeasuredCurves, surfaces: dict[str, Surface]) -> MeasuredCurves:
    """Curves steadied where one row says little: long products run at whatever clock the chip has at that
    moment, and a mixture's row is one draw of experts. There a node is a quarter its row (half of a mixture's), and
    the rest is the surface's.
    """
    if kind not in ("linear", "moe"):
        return curves
    shapes = {}
    for name, values in curves.shapes.items():
        sizes = [float(size) for size in name.split("x")]
        key = table_key
        if kind == "moe" and key in TUNED_EXPERTS:
            key += "-tuned" if (sizes[2], sizes[1]) in TUNED_EXPERTS[key] else "-untuned"
        smooth = surfaces[key]
        rest = (
            [np.log2(sizes[0]), np.log2(sizes[1])]
            if kind == "linear"
            else [np.log2(sizes[0] * sizes[1]), *np.log2(sizes[2:])]
        )
        own = 0.5 if kind == "moe" else 0.25
        shapes[name] = [
            round(own * value + (1 - own) * smooth.at(x, *rest), 3) if kind == "moe" or x >= 10 else value
            for x, value in zip(curves.axes[0], values, strict=True)
        ]
    return MeasuredCurves(curves.axes, shapes)


def beyond_blocks(axis: list[float], log_seconds: np.ndarray) -> np.ndarray:
    """log2 of seconds at `JUMPS`, where CUTLASS' fp8 products change kernels; rows are the first axis of the seconds.

    vLLM chooses the kernel by rows, up to 16, 64 and 128, and more tiles follow from 256 on: a product of 129 rows
    takes half as long again as one of 128. Above such a size seconds go on as between one and a half times and twice
    the size; on public tables of H100 and H200 that is 3% off at 65 and 129 rows, a straight line 15 to 35%.
    """
    lines = log_seconds.reshape(len(axis), -1).T
    rows_at = np.log2(BLOCKS)[:, None] + np.log2([1, 1.5, 2])
    before, middle, after = (np.stack([np.interp(where, axis, line) for line in lines], axis=1) for where in rows_at.T)
    steps = (rows_at[:, 1] - np.array(JUMPS)) / math.log2(2 / 1.5)
    return np.maximum(before, middle - (after - middle) * steps[:, None])


def fills(m: np.ndarray, tiles: RowTiles) -> np.ndarray:
    """Where rows fill their tiles, or run on a kernel that has none."""
    return (m <= tiles.above) | (m % tiles.rows == 0)


def curves_in_tiles(curves: MeasuredCurves, device: Hardware, tiles: RowTiles) -> MeasuredCurves:
    """Curves of fp8 products at whole tiles, with nodes just above the numbers of rows at which kernels change."""
    axis, shapes = curves.axes[0], {}
    jumps = JUMPS[:SMALL]
    kept = [x for x in axis if fills(np.round(2.0**x), tiles)]
    for name, values in curves.shapes.items():
        n, k = (float(size) for size in name.split("x"))

        def base(x: list[float], *, tiled: bool = False, n: float = n, k: float = k) -> np.ndarray:
            row = row_terms("linear", "fp8", {"m": np.round(2.0 ** np.array(x)), "n": n, "k": k}, device)
            assert row is not None
            terms = tiles.worked(row.dims, row.terms)[1] if tiled else row.terms
            return np.log2(SHAPES["linear"].base(terms, row.dims))

        log_seconds = np.array(values) + base(axis)
        above = beyond_blocks(axis, log_seconds)[:SMALL, 0] - base(list(jumps))
        at = np.isin(axis, kept)
        nodes = dict(zip(kept, (log_seconds[at] - base(kept, tiled=True)).round(3).tolist(), strict=True))
        nodes |= dict(zip(jumps, above.round(3).tolist(), strict=True))
        shapes[name] = [nodes[x] for x in sorted(nodes)]
    return MeasuredCurves([sorted({*kept, *jumps})], shapes)


def rows_with_jumps(rows: TableRows, device: Hardware) -> TableRows:
    """Rows of fp8 products and, of each weight, what lies just above the numbers of rows at which kernels change."""
    sizes: list[tuple[float, float, float]] = []
    seconds: list[float] = []
    unseen: list[bool] = []
    for n, k in sorted(set(zip(rows.dims["n"].tolist(), rows.dims["k"].tolist(), strict=True))):
        one = np.flatnonzero((rows.dims["n"] == n) & (rows.dims["k"] == k))
        one = one[np.argsort(rows.dims["m"][one])]
        log_seconds = beyond_blocks(np.log2(rows.dims["m"][one]).tolist(), np.log2(rows.seconds[one]))[:SMALL, 0]
        sizes += [(rows + 1.0, n, k) for rows in BLOCKS[:SMALL]]
        seconds += (2.0**log_seconds).tolist()
        unseen += [bool(rows.unseen[one[0]])] * SMALL
    m, n, k = (
        np.concatenate([rows.dims[name], column]) for name, column in zip("mnk", zip(*sizes, strict=True), strict=True)
    )
    terms = row_terms("linear", rows.table_key, {"m": m, "n": n, "k": k}, device)
    assert terms is not None
    return rows._replace(
        dims=terms.dims,
        terms=terms.terms,
        seconds=np.concatenate([rows.seconds, seconds]),
        unseen=np.concatenate([rows.unseen, unseen]),
    )


def row_tiles(device: Hardware) -> RowTiles:
    """`TILES` with what a last tile takes longer that is not full: seconds beyond those of whole tiles.

    Least squares of relative errors. Rows scatter around the curve, and it is their mean that a server's steps show.
    """
    shares, beyond, peaks = [], [], []
    for n, k in CURVE_WEIGHTS:
        rows = [row for row in read_rows(FP8_ROWS) if (row.sizes["n"], row.sizes["k"]) == (n, k)]
        m, took = np.array([(row.sizes["m"], row.seconds) for row in rows], float).T
        row = row_terms("linear", "fp8", {"m": m, "n": float(n), "k": float(k)}, device)
        assert row is not None
        dims, worked, _ = TILES.worked(row.dims, row.terms)
        whole, base = m % TILES.rows == 0, SHAPES["linear"].base(worked, dims)
        ratio = np.interp(np.log2(dims["m"]), np.log2(m[whole]), np.log2(took / base)[whole])
        shares.append((m % TILES.rows / TILES.rows)[~whole])
        beyond.append((1 - base * 2.0**ratio / took)[~whole])
        peaks.append((row.terms.compute / m * TILES.rows / took)[~whole])
    share, left, peak = (np.concatenate(parts) for parts in (shares, beyond, peaks))
    nodes = np.array(TILES.filled)
    hats = np.stack([np.interp(share, nodes, one) for one in np.eye(len(nodes))], axis=1) * peak[:, None]
    extra = np.maximum(np.linalg.lstsq(hats, left, rcond=None)[0], 0.0)
    return msgspec.structs.replace(TILES, extra=[*extra[:-1].round(2).tolist(), 0.0])


def tiles_of(rows: TableRows) -> RowTiles | None:
    """How the kernel of a table takes its rows: vLLM's fp8 products on Hopper have tiles, no others were seen to."""
    device = catalog.hardware(rows.device)
    if (rows.kind, rows.table_key, device.architecture) != ("linear", "fp8", "hopper") or rows.engine == "trtllm":
        return None
    return msgspec.structs.replace(row_tiles(catalog.hardware("h200")), at_once=device.compute_units / 2)


def risen(kind: str, table_key: str, curves: MeasuredCurves, device: Hardware) -> MeasuredCurves:
    """Curves along which seconds never fall as work grows: the nearest such ones to what was timed.

    Products stay as they are. Libraries change from one kernel to another between two numbers of rows, and the one
    before may be the slower (CUTLASS in fp8 above 16, 64 and 256 rows; cuBLAS at 8 and 16): the engine's steps show it.
    """
    if kind == "linear":
        return curves
    shapes = {}
    for name, values in curves.shapes.items():
        fixed = SHAPES[kind].fixed_coords(tuple(float(size) for size in name.split("x")))
        floors = constraints(kind, table_key, device, curves.axes, [float(x) for x in fixed], parts=1)
        shapes[name] = np.round(rising(curves.axes, np.asarray(values), floors), 3).tolist()
    return MeasuredCurves(curves.axes, shapes)


def placed(kind: str, table_key: str, curves: MeasuredCurves, able: list[Surface], device: Hardware) -> Surface:
    """A surface for a format of which few shapes were timed: of some surfaces the one that those scatter least around,
    moved to where they lie at each number of rows, and tilted as they are from small weights to large ones."""
    sizes = [[float(size) for size in name.split("x")] for name in curves.shapes]
    where = np.array([SHAPES[kind].fixed_coords(tuple(one)) for one in sizes], float)  # (shapes, fixed axes)
    candidates: list[tuple[float, Surface]] = []
    for surface in able:
        off = np.array(offsets(surface, SHAPES[kind], curves)).reshape(len(curves.shapes), -1)
        tilt, left = tilted(where, off)
        nodes = np.asarray(surface.values).reshape([len(axis) for axis in surface.axes])
        fixed = np.stack(np.meshgrid(*surface.axes[1:], indexing="ij"), axis=-1).clip(
            where.min(axis=0), where.max(axis=0)
        )
        shift = np.stack([np.interp(surface.axes[0], curves.axes[0], row) for row in tilt.reshape(-1, off.shape[1])])
        lifted = nodes + np.einsum("...f,fm->m...", fixed, shift[1:]) + shift[0].reshape(-1, *[1] * (nodes.ndim - 1))
        floors = constraints(kind, table_key, device, surface.axes)
        risen = rounded(
            surface.axes, rising(surface.axes, lifted.ravel(), floors), floors, f"{device.name} {kind} {table_key}"
        )
        spread = (
            float(np.median(np.abs(left))) + float(np.ptp(np.median(off, axis=0))) / 10
        )  # alike, and like the surface
        candidates.append((spread, risen))
    return min(candidates, key=lambda one: one[0])[1]


def tilted(where: np.ndarray, off: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A plane over the fixed coordinates through offsets, for each number of rows, and what is left of them.

    Slopes are held back by a twentieth of an octave's square: four shapes do not say much about three figures.
    """
    centre = where.mean(axis=0)
    reach = where - centre
    slopes = np.linalg.solve(reach.T @ reach + 0.05 * np.eye(reach.shape[1]), reach.T @ (off - off.mean(axis=0)))
    level = off.mean(axis=0) - centre @ slopes
    return np.vstack([level, slopes]), off - level - where @ slopes


def by_tuning(rows: TableRows) -> dict[str, TableRows]:
    """Rows of experts by whether the engine has settings for their sizes: ``by_tuning(rows)["bf16-untuned"]``"""
    if rows.kind != "moe" or rows.table_key not in TUNED_EXPERTS:
        return {}
    sizes = zip(rows.dims["experts"].tolist(), rows.dims["inner"].tolist(), strict=True)
    tuned = np.array([one in TUNED_EXPERTS[rows.table_key] for one in sizes])
    return {f"{rows.table_key}-{name}": part_of(rows, which) for name, which in (("tuned", tuned), ("untuned", ~tuned))}


def halfway(whole: Surface, rows: TableRows) -> Surface:
    """Halfway from a table's surface to that of some of its rows alone, which are few for a surface of their own.

    Of rows held out, small, medium and large ones are met within 5.0, 2.4 and 1.8% (medians); by the whole table's
    surface within 5.8, 2.9 and 1.7, by that of these rows alone within 8.6, 2.0 and 2.0. Of shapes that were left out,
    4.1, 4.5 and 4.2% (means).
    """
    alone = surface(rows)
    places = np.stack(np.meshgrid(*whole.axes, indexing="ij"), axis=-1).reshape(-1, len(whole.axes))
    nodes = (np.asarray(whole.values).ravel() + np.array([alone.at(*place) for place in places])) / 2
    floors = constraints(rows.kind, rows.table_key, catalog.hardware(rows.device), whole.axes)
    return rounded(whole.axes, nodes, floors, f"{rows.device} {rows.engine} {rows.kind} {rows.table_key} by tuning")


def part_of(rows: TableRows, which: np.ndarray) -> TableRows:
    """Some rows of a table."""

    def cut(column: Value) -> Value:
        return column[which] if isinstance(column, np.ndarray) else column

    return rows._replace(
        dims={name: cut(column) for name, column in rows.dims.items()},
        terms=rows.terms._replace(**{name: cut(column) for name, column in rows.terms._asdict().items()}),
        seconds=rows.seconds[which],
        unseen=rows.unseen[which],
    )


def own(kinds: list[str] | None = None) -> None:
    """The rows that were measured for this project: curves by exact shape, and surfaces for all others.

    Of some kinds, the file keeps what it has of the others.
    """
    path, device = DATA / "profiles" / "h200" / "measured.json", catalog.hardware("h200")
    kinds = kinds or OWN
    kept = ROOT / "benchmarks" / "data"
    files = sorted({*kept.glob("h200_kernels*.csv")} - {FP8_ROWS})  # that one says how tiles are filled, no more
    first, *others = files  # a shape that was timed again is read from the later file
    rows = [without_start(row) for row in read_rows(first)]
    rows += [row for path in others for row in read_rows(path)]
    fitted: dict[str, dict[str, Surface]] = {}
    for part in own_rows():
        if part.kind not in kinds:
            continue
        tiles = tiles_of(part)
        part = part if tiles is None else rows_with_jumps(part, device)
        whole = fitted.setdefault(part.kind, {})[part.table_key] = surface(part, tiles)
        print("h200 own", part.kind, part.table_key, len(part.seconds), flush=True)
        fitted[part.kind] |= {key: halfway(whole, some) for key, some in by_tuning(part).items()}
    tables = msgspec.json.decode((DATA / "profiles" / "h200" / "vllm.json").read_bytes(), type=KernelProfile)
    profile = profile_of(
        rows,
        device,
        "benchmarks/data/h200_kernels*.csv: vLLM 0.25.1 and torch 2.11 on some H200",
        surfaces={("decode_attention", key): one for key, one in tables.fitted["decode_attention"].items()},
    )
    measured: dict[str, dict[str, MeasuredCurves]] = {}
    for kind, curves_by_key in profile.measured.items():
        if kind not in kinds:
            continue
        for table_key, timed in curves_by_key.items():
            smooth = fitted.get(kind, {}).get(table_key)
            if (kind, table_key) == ("linear", "fp8"):
                timed = curves_in_tiles(timed, device, row_tiles(device))
            curves = steadied(kind, table_key, timed, fitted[kind]) if smooth is not None else timed
            measured.setdefault(kind, {})[table_key] = risen(kind, table_key, curves, device)
    for kind in {"linear", "moe"} & measured.keys():
        for table_key, curves in measured[kind].items():
            if table_key not in fitted[kind]:
                able = [one for one in (tables.fitted[kind].get(table_key), fitted[kind]["bf16"]) if one is not None]
                fitted[kind][table_key] = placed(kind, table_key, curves, able, device)
    before = msgspec.json.decode(path.read_bytes(), type=KernelProfile)
    stay = [
        {kind: tables for kind, tables in kept.items() if kind not in kinds}
        for kept in (before.fitted, before.measured)
    ]
    profile = msgspec.structs.replace(
        profile,
        fitted=stay[0] | fitted,
        measured=stay[1] | measured,
        row_tiles={"fp8": row_tiles(device)},
        split_tiles=split_tiles("h200"),
        tuned=TUNED_EXPERTS,
    )
    path.write_bytes(msgspec.json.encode(profile) + b"\n")


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


LAUNCH_SECONDS = 3e-6  # of a product on CUDA cores that does not depend on its length: assumed
CORE_SHARE = 0.7  # of a device's FP32 FLOP/s that 8,192 rows reach: assumed


def on_cuda_cores() -> None:
    """Products in fp32 without TF32, which cuBLAS runs on CUDA cores: a mixture's router, timed for one weight.

    A few tiles walk along the inputs one after the other, so that seconds grow with their number, k, and hardly with
    that of the outputs.
    """
    device = catalog.hardware("b200")
    rows = read_rows(ROOT / "benchmarks" / "data" / "gb200_router_fp32.csv")
    n, k = (rows[0].sizes[size] for size in "nk")
    seconds = {row.sizes["m"]: row.seconds for row in rows}
    seconds[8192] = 2 * 8192 * n * k / (CORE_SHARE * device.flops["fp32"])
    axes = [[round(float(np.log2(m)), 4) for m in seconds], [7.0, 8.0], [11.0, 12.0, round(float(np.log2(k)), 4)]]
    m, _, inputs = (2.0**x for x in np.meshgrid(*axes, indexing="ij"))
    timed = np.interp(np.log2(m), axes[0], np.log2(list(seconds.values())))
    took = LAUNCH_SECONDS + (2.0**timed - LAUNCH_SECONDS) * inputs / k
    values = np.log2(took / base_at("linear", "fp32-ieee", device, np.meshgrid(*axes, indexing="ij"))).ravel()
    floors = constraints("linear", "fp32-ieee", device, axes)
    fitted = rounded(axes, rising(axes, values, floors), floors, "b200 linear fp32-ieee")
    source = "torch's fp32 products of 256 x 6144 on GB200, vllm-project/vllm pull request 47973"
    profile = KernelProfile(device="b200", source=source, fitted={"linear": {"fp32-ieee": fitted}})
    (DATA / "profiles" / "b200" / "measured.json").write_bytes(msgspec.json.encode(profile) + b"\n")


def main() -> None:
    wanted = [name for name in sys.argv[1:] if name not in AXES] or list(TABLES)
    kinds = [name for name in sys.argv[1:] if name in AXES]
    if wanted[0] == "own":
        own(kinds)
        return
    unknown = [name for name in wanted if name not in TABLES]
    if unknown:
        sys.exit(f"there is no kernel table of {' or '.join(unknown)}; there are tables of {', '.join(TABLES)}")
    published()
    on_cuda_cores()
    if not missing():
        for device in wanted:
            for engine, name in TABLES[device].items():
                fit_tables(device, engine, name, kinds)
    own(kinds)  # some of its formats lie on a surface of the tables
    if missing():
        print(f"Surfaces of the public tables stay as they are: {missing()}")


def fit_tables(device: str, engine: str, name: str, kinds: list[str]) -> None:
    """The surfaces of one engine's public tables on a device; of some kinds, the others stay as they are.

    A profile whose tables are not all there stays as it is: it would lack what they have.
    """
    parts = ("gemm", "context_attention", "generation_attention", "moe")
    if lacking := absent(*(f"{name}__{part}_perf" for part in parts)):
        print(f"{device} {engine} stays as it is: {', '.join(lacking)} not found")
        return
    fitted: dict[str, dict[str, Surface]] = {}
    tiled: dict[str, RowTiles] = {}
    path = DATA / "profiles" / device / f"{engine}.json"
    if kinds:
        kept = msgspec.json.decode(path.read_bytes(), type=KernelProfile)
        tiled = dict(kept.row_tiles)
        fitted = {kind: tables for kind, tables in kept.fitted.items() if kind not in kinds}
    for rows in everything(device, engine):
        if kinds and rows.kind not in kinds:
            continue
        if rows.table_key == carried_experts.FORMAT and catalog.hardware(device).architecture == "hopper":
            rows = carried_experts.carried(device, rows)
        tiles = tiles_of(rows)
        tiled |= {} if tiles is None else {rows.table_key: tiles}
        fitted.setdefault(rows.kind, {})[rows.table_key] = surface(rows, tiles)
        print(device, engine, rows.kind, rows.table_key, len(rows.seconds), flush=True)
    source = f"fitted to the public kernel table {name.replace('__', ' ')}, see docs/accuracy.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    hopper = catalog.hardware(device).architecture == "hopper" and engine == "vllm"
    profile = KernelProfile(
        device=device,
        source=source,
        rounds=True,
        fitted=fitted,
        row_tiles=tiled,
        split_tiles=split_tiles(device) if hopper else {},
    )
    path.write_bytes(msgspec.json.encode(profile) + b"\n")


if __name__ == "__main__":
    main()
