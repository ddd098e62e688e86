"""Errors of the collective model against measured tables, the table of docs/accuracy/collectives.md. One command:

    python benchmarks/collectives.py            # prints it
    python benchmarks/collectives.py --write    # puts it into docs/accuracy/collectives.md

Columns are median / 90th percentile of the relative error in per cent. `seen` rows gave the figures of
data/collectives.toml; a fit used one GPU of a generation, one release of NCCL, and every other message size.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import accuracy_page
import numpy as np
from measurements import DATA

from inferometer.costs import collectives
from inferometer.specs import catalog

FITTED = {  # what the figures were fitted to, apart from the sizes left out
    ("a100-sxm-80gb", "nccl 2.27.3"),
    ("a100-sxm-80gb", "vllm 0.14.0"),
    ("h100-sxm", "nccl 2.27.3"),
    ("h100-sxm", "vllm 0.24.0"),
    ("h100-sxm", "trtllm 1.3.0rc20"),
    ("b200", "nccl 2.29.2"),
    ("b200", "vllm 0.24.0"),
    ("l40s", "nccl 2.27.3"),
}
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


def read() -> Iterator[Rows]:
    """Every row of benchmarks/data/collectives.csv.

    Not in it: sums of int8, which no engine asks for and which NCCL does not give to the switch; vLLM's calls outside
    of a CUDA graph, which measure the host (20 to 44 µs whatever the size) and a copy of the input.
    """
    points: dict[tuple[str, str, str], list[tuple[float, float, float]]] = defaultdict(list)
    with (DATA / "collectives.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            point = (float(row["bytes"]), float(row["ranks"]), float(row["seconds"]))
            points[row["gpu"], row["library"], row["collective"]].append(point)
    for (gpu, source, kind), rows in points.items():
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
    device = catalog.hardware(rows.gpu)
    style = style or rows.style or collectives.style(device.interconnect, device.architecture)
    engine = rows.source.split()[0]
    return collectives.seconds(  # type: ignore[no-any-return]
        rows.kind, rows.size, rows.ranks, link=device.links[device.interconnect], style=style, engine=engine
    )


def _cell(error: np.ndarray) -> str:
    return f"{np.median(error) * 100:.0f} / {np.percentile(error, 90) * 100:.0f}" if error.size else "–"


def report() -> str:
    """The Markdown tables of docs/accuracy/collectives.md."""
    every = sorted(read(), key=lambda r: (ORDER.index(r.kind), r.gpu, r.source, r.style))
    heads = [band for band, _, _ in BANDS]
    lines = [
        "| collective | GPU | library | style | rows | " + " | ".join(heads) + " |",
        "|---|---|---|---|---:|" + "---:|" * len(heads),
    ]
    for rows in every:
        device = catalog.hardware(rows.gpu)
        style = rows.style or collectives.style(device.interconnect, device.architecture)
        error = np.abs(predict(rows) / rows.seconds - 1)
        for label, chosen in (("seen", rows.seen), ("unseen", ~rows.seen)):
            if chosen.any():
                cells = [_cell(error[chosen & (rows.size >= low) & (rows.size < high)]) for _, low, high in BANDS]
                names = [rows.kind, rows.gpu, rows.source, style, f"{chosen.sum()} {label}"]
                lines.append("| " + " | ".join(names + cells) + " |")
    lines += ["", "NVLink generations predicted with the figures of another one, NCCL, rows of 64 KiB and more:", ""]
    styles = ("nvlink-ampere", "nvlink-hopper", "nvlink-blackwell")
    lines += ["| GPU | " + " | ".join(styles) + " | direct |", "|---|" + "---:|" * (len(styles) + 1)]
    for gpu in ("a100-sxm-80gb", "h100-sxm", "b200"):
        same_gpu = [r for r in every if r.gpu == gpu and r.source.startswith("nccl")]
        cells = []
        for style in (*styles, "direct"):
            errors = [np.abs(predict(r, style) / r.seconds - 1)[r.size >= 2**16] for r in same_gpu]
            cells.append(_cell(np.concatenate(errors)))
        lines.append(f"| {gpu} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def written() -> str:
    """The table as docs/accuracy/collectives.md has it."""
    return accuracy_page.stands(accuracy_page.read(), "collectives")


def main() -> None:
    text = report()
    if "--write" not in sys.argv:
        print(text)
        return
    accuracy_page.write(collectives=text)


if __name__ == "__main__":
    main()
