"""Errors of the collective model against measured tables, the table of docs/accuracy/collectives.md. One command:

    python benchmarks/collectives.py            # prints it; measurements under $INFEROMETER_SHARED, or ../shared
    python benchmarks/collectives.py --write    # puts it into docs/accuracy/collectives.md

Columns are median / 90th percentile of the relative error in per cent. `seen` rows gave the figures of
data/collectives.toml; a fit used one GPU of a generation, one release of NCCL, and every other message size.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import accuracy_page
import numpy as np

from inferometer.costs import collectives
from inferometer.specs import catalog

GPUS = {"a100_sxm": "a100-sxm-80gb", "h100_sxm": "h100-sxm", "h200_sxm": "h200", "b200_sxm": "b200", "l40s": "l40s"}
FITTED = {  # what the figures were fitted to, apart from the sizes left out
    ("a100_sxm", "nccl 2.27.3"),
    ("a100_sxm", "vllm 0.14.0"),
    ("h100_sxm", "nccl 2.27.3"),
    ("h100_sxm", "vllm 0.24.0"),
    ("h100_sxm", "trtllm 1.3.0rc20"),
    ("b200_sxm", "nccl 2.29.2"),
    ("b200_sxm", "vllm 0.24.0"),
    ("l40s", "nccl 2.27.3"),
}
BYTES = {"half": 2, "bfloat16": 2, "int8": 1}
BANDS = (
    ("< 64 KiB", 0, 2**16),
    ("64 KiB – 1 MiB", 2**16, 2**20),
    ("1 – 16 MiB", 2**20, 2**24 + 1),
    ("> 16 MiB", 2**24 + 1, 2**60),
)
ORDER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


class Rows(NamedTuple):
    """Measurements of one collective on one GPU by one library, as arrays."""

    gpu: str
    source: str
    kind: str
    size: np.ndarray  # bytes
    ranks: np.ndarray
    seconds: np.ndarray
    seen: np.ndarray
    style: str = ""  # of the link, where it is not what the device's data says


def tables() -> Path | None:
    """The folder of measured tables, or None."""
    shared = Path(os.environ.get("INFEROMETER_SHARED", Path(__file__).resolve().parents[2] / "shared"))
    folder = shared / "measured" / "kernel_tables"
    return folder if folder.is_dir() else None


def read(folder: Path) -> Iterator[Rows]:
    """Every usable row of the tables.

    Left out: sums of int8, which no engine asks for and which NCCL does not give to the switch; vLLM's calls outside of
    a CUDA graph, which measure the host (20 to 44 µs whatever the size) and a copy of the input.
    """
    import pyarrow.parquet as parquet

    paths = sorted([*folder.glob("*__nccl_perf.parquet"), *folder.glob("*__custom_allreduce_perf.parquet")])
    for path in paths:
        gpu, library, _ = path.stem.split("__")
        source = library.replace("_", " ")
        data = parquet.read_table(path).to_pydict()
        dtypes = data.get("nccl_dtype") or data["allreduce_dtype"]
        how = data.get("backend") or [""] * len(dtypes)
        points: dict[str, list[tuple[float, float, float]]] = defaultdict(list)
        columns = zip(
            data["op_name"], dtypes, how, data["num_gpus"], data["message_size"], data["latency"], strict=True
        )
        for name, dtype, backend, ranks, elements, milliseconds in columns:
            kind = "all_to_all" if name == "alltoall" else name
            if backend == "vllm_eager" or (dtype == "int8" and kind in ("all_reduce", "reduce_scatter")):
                continue
            points[kind].append((elements * BYTES[dtype], ranks, milliseconds / 1e3))
        for kind, rows in points.items():
            size, ranks, took = np.array(rows, dtype=float).T
            seen = (np.round(np.log2(size)) % 2 == 0) & ((gpu, source) in FITTED)
            every = Rows(gpu, source, kind, size, ranks, took, seen)
            if gpu != "l40s":
                yield every
                continue
            pair = ranks == 2
            yield every._replace(**{f: getattr(every, f)[pair] for f in ("size", "ranks", "seconds", "seen")})
            more = every._replace(**{f: getattr(every, f)[~pair] for f in ("size", "ranks", "seconds", "seen")})
            yield more._replace(source=f"{source}, 4 and 8 ranks", style="pcie-shared")
            yield more._replace(
                source=f"{source}, 4 and 8 ranks", style="pcie", seen=more.seen & (more.size <= 8192)
            )  # for the hops


def predict(rows: Rows, style: str = "") -> np.ndarray:
    """The model's seconds for the same calls."""
    device = catalog.hardware(GPUS[rows.gpu])
    style = style or rows.style or collectives.style(device.interconnect, device.architecture)
    engine = rows.source.split()[0]
    return collectives.seconds(  # type: ignore[no-any-return]
        rows.kind, rows.size, rows.ranks, link=device.links[device.interconnect], style=style, engine=engine
    )


def _cell(error: np.ndarray) -> str:
    return f"{np.median(error) * 100:.0f} / {np.percentile(error, 90) * 100:.0f}" if error.size else "–"


def report(folder: Path) -> str:
    """The Markdown tables of docs/accuracy/collectives.md."""
    every = sorted(read(folder), key=lambda r: (ORDER.index(r.kind), r.gpu, r.source, r.style))
    heads = [band for band, _, _ in BANDS]
    lines = [
        "| collective | GPU | library | style | rows | " + " | ".join(heads) + " |",
        "|---|---|---|---|---:|" + "---:|" * len(heads),
    ]
    for rows in every:
        device = catalog.hardware(GPUS[rows.gpu])
        style = rows.style or collectives.style(device.interconnect, device.architecture)
        error = np.abs(predict(rows) / rows.seconds - 1)
        for label, chosen in (("seen", rows.seen), ("unseen", ~rows.seen)):
            if chosen.any():
                cells = [_cell(error[chosen & (rows.size >= low) & (rows.size < high)]) for _, low, high in BANDS]
                names = [rows.kind, GPUS[rows.gpu], rows.source, style, f"{chosen.sum()} {label}"]
                lines.append("| " + " | ".join(names + cells) + " |")
    lines += ["", "NVLink generations predicted with the figures of another one, NCCL, rows of 64 KiB and more:", ""]
    styles = ("nvlink-ampere", "nvlink-hopper", "nvlink-blackwell")
    lines += ["| GPU | " + " | ".join(styles) + " | direct |", "|---|" + "---:|" * (len(styles) + 1)]
    for gpu in ("a100_sxm", "h100_sxm", "b200_sxm"):
        same_gpu = [r for r in every if r.gpu == gpu and r.source.startswith("nccl")]
        cells = []
        for style in (*styles, "direct"):
            errors = [np.abs(predict(r, style) / r.seconds - 1)[r.size >= 2**16] for r in same_gpu]
            cells.append(_cell(np.concatenate(errors)))
        lines.append(f"| {GPUS[gpu]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def written() -> str:
    """The table as docs/accuracy/collectives.md has it."""
    return accuracy_page.stands(accuracy_page.read(), "collectives")


def main() -> None:
    folder = tables()
    if folder is None:
        print("No collective is compared: set INFEROMETER_SHARED to the folder that holds measured/kernel_tables")
        return
    try:
        text = report(folder)
    except ImportError:
        sys.exit("Reading the tables needs pyarrow: pip install pyarrow")
    if "--write" not in sys.argv:
        print(text)
        return
    accuracy_page.write(collectives=text)


if __name__ == "__main__":
    main()
