"""Kernels by shape against the public tables: rows that the surfaces never saw, and whole GPUs left out.

    python benchmarks/kernel_accuracy.py              our own rows, and the table of one GPU (half a minute)
    python benchmarks/kernel_accuracy.py --all        all GPUs: the tables of docs/accuracy/kernels.md (two minutes)

Cells are the median of |predicted/measured - 1| in per cent over rows held out of the fit (one shape in four), by size.
A GPU left out is predicted from the tables of other GPUs and its own data sheet.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from inferometer.base.symbols import maximum_of
from inferometer.costs.kernels.lookup import (
    SIMILAR_FORMATS,
    Formats,
    TransferLookup,
    mean_seconds,
    surface_seconds,
)
from inferometer.costs.kernels.registry import KernelProfile, donors, read_profile
from inferometer.costs.kernels.surfaces import SHAPES
from inferometer.specs import catalog

sys.path.append(str(Path(__file__).resolve().parents[1] / "tools"))  # the tables are read there

from kernel_tables import TABLES, TableRows, kept_rows, own_rows

SMALL = "h200"  # the GPU that is compared without --all
LABELS = {
    "linear": "products",
    "decode_attention": "decode attention",
    "prefill_attention": "prefill attention",
    "moe": "experts",
}


def size(rows: TableRows) -> np.ndarray:
    """0, 1, 2: kernels below 20 µs at the speed of light, below 200 µs, and larger ones."""
    light = rows.terms.roofline * np.ones_like(rows.seconds)
    return np.digitize(light, [2e-5, 2e-4])


def table_of(rows: TableRows, tables_of_kind: Mapping[str, object]) -> tuple[str, bool]:
    """The table that serves rows, '' where there is none, and whether it is of their own number format."""
    similar = (*SIMILAR_FORMATS.get(rows.table_key, ()), rows.table_key.removesuffix("-fp8"))
    key = next((word for word in (rows.table_key, *similar) if word in tables_of_kind), "")
    return key, key == rows.table_key


def predicted(rows: TableRows, profile: KernelProfile) -> np.ndarray | None:
    """Seconds of rows by a profile's surface; None where it has no such table_key."""
    tables_of_kind = profile.fitted.get(rows.kind, {})
    key, own_format = table_of(rows, tables_of_kind)
    if not key:
        return None
    tiles = profile.tiles(rows.kind, key) if own_format else None
    surfaces = np.array([key])
    if rows.kind == "moe":  # of which there may be two, by the sizes of the experts
        sizes = zip(rows.dims["experts"].tolist(), rows.dims["inner"].tolist(), strict=True)
        surfaces = np.array([profile.surface_key("moe", key, {"experts": e, "inner": n}) for e, n in sizes])
    each = {
        one: surface_seconds(tables_of_kind[one], SHAPES[rows.kind], rows.dims, rows.terms, tiles=tiles)
        for one in dict.fromkeys(surfaces.tolist())
    }
    took = np.select([surfaces == one for one in each], list(each.values()))
    return np.asarray(maximum_of(took, rows.terms.roofline))


def transferred(rows: TableRows, engine: str) -> np.ndarray | None:
    """Seconds of rows by the tables of other devices; None where none has such rows."""
    device = catalog.hardware(rows.device)
    lookup = TransferLookup(device, donors(device, engine), Formats({}))
    number_format = rows.table_key if rows.kind in ("linear", "moe") else ""
    tables_of_kind = lookup.choose(rows.kind, lambda some: table_of(rows, some), number_format)
    if not tables_of_kind:
        return None
    return np.asarray(maximum_of(mean_seconds(rows.kind, tables_of_kind, rows.dims, rows.terms), rows.terms.roofline))


def family(rows: TableRows) -> str:
    """What a line of the table is about."""
    if rows.kind in ("linear", "moe"):
        return f"{LABELS[rows.kind]}, {rows.table_key}"
    latent = ", latent (MLA)" if "x" in rows.table_key else ""
    return LABELS[rows.kind] + latent + (", fp8 cache" if rows.table_key.endswith("-fp8") else "")


def errors(devices: Iterable[str]) -> Iterator[tuple[str, str, str, np.ndarray, np.ndarray, np.ndarray | None]]:
    """Device, engine, family, size, error of unseen rows, and error of the same rows with the device left out."""
    for device in devices:
        for engine in TABLES[device]:
            own = read_profile(device, engine)
            assert own is not None
            for rows in kept_rows(device, engine):
                ours = predicted(rows, own)
                assert ours is not None
                left = transferred(rows, engine)
                yield (
                    device,
                    engine,
                    family(rows),
                    size(rows),
                    np.abs(ours / rows.seconds - 1),
                    None if left is None else np.abs(left / rows.seconds - 1),
                )


def cells(sizes: np.ndarray, off: np.ndarray) -> list[str]:
    """The median of each size, and how many rows there are."""
    return [f"{np.median(off[sizes == k]) * 100:.1f}" if (sizes == k).sum() >= 10 else "–" for k in range(3)]


def tables(devices: Iterable[str] = TABLES) -> str:
    """The table of the page."""
    groups: dict[tuple[str, str, str], list[list[np.ndarray]]] = defaultdict(lambda: [[], [], []])
    for device, engine, label, sizes, off, left in errors(devices):
        parts = groups[label, device, engine]
        parts[0].append(sizes)
        parts[1].append(off)
        parts[2].append(np.full_like(off, np.nan) if left is None else left)
    head = "| kernel | GPU | engine | rows | small | medium | large | GPU left out: small | medium | large |"
    lines = [head, "|---|---|---|---:|---:|---:|---:|---:|---:|---:|"]
    for (label, device, engine), (size_parts, off_parts, left_parts) in sorted(groups.items()):
        sizes, off, left = np.concatenate(size_parts), np.concatenate(off_parts), np.concatenate(left_parts)
        known = ~np.isnan(left)
        away = cells(sizes[known], left[known]) if known.any() else ["–"] * 3
        lines.append(
            f"| {label} | {device} | {engine} | {len(off):,} | " + " | ".join([*cells(sizes, off), *away]) + " |"
        )
    return "\n".join(lines)


def own_table() -> str:
    """Our own rows of one H200: shapes that the surface never saw, by the surface alone."""
    profile = read_profile("h200", "measured")
    assert profile is not None
    lines = ["| kernel | rows not seen | small | medium | large |", "|---|---:|---:|---:|---:|"]
    for rows in own_rows():
        if not rows.unseen.any():
            continue
        ours = predicted(rows, profile)
        assert ours is not None
        off, sizes = np.abs(ours / rows.seconds - 1)[rows.unseen], size(rows)[rows.unseen]
        label = family(rows) + (f", head {rows.table_key}" if rows.kind.endswith("_attention") else "")
        lines.append(f"| {label} | {len(off):,} | " + " | ".join(cells(sizes, off)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kernels by shape against the public tables.")
    parser.add_argument("--all", action="store_true", help="all GPUs, as in docs/accuracy/kernels.md")
    given = parser.parse_args()
    print(own_table(), "\n")
    print(tables(TABLES if given.all else [SMALL]))


if __name__ == "__main__":
    main()
