"""Fit data/delta_rule.toml, the kernels of gated delta nets, to public kernel tables.

    python tools/fit_delta_rule.py      prints the figures, and writes benchmarks/data/delta_rule.csv.gz

Tables of AIConfigurator's (Apache-2.0), read where `kernel_tables` says: seconds of a layer's call in vLLM and SGLang.
Figures are fitted to three shapes in four of some devices, and judged on the fourth, and on devices that no fit saw
(`benchmarks/delta_rule.py`).
"""

from __future__ import annotations

import csv
import gzip
import io
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
from kernel_tables import ROOT, Array, absent, folder, held_out, missing, table

from inferometer.costs.kernels.delta_rule import ChunkKernels, DeltaRule, Prompts, SequencePrograms
from inferometer.specs import catalog

KEPT = ROOT / "benchmarks" / "data" / "delta_rule.csv.gz"
COLUMNS = ("device", "engine", "backend", "phase", "seqs", "length", "key_heads", "heads", "seconds")
LONGEST = 65_536  # tokens of a call: engines' steps have fewer

# Left out: SGLang's on H200, which something else disturbed. Calls of 64 heads take from 3 to 7 ms there without order,
# and decoding up to three times as long as vLLM's, whose kernel is the same.
TABLES = {
    "h100-sxm": ("h100_sxm__vllm_0.24.0", "h100_sxm__sglang_0.5.14"),
    "h200": ("h200_sxm__vllm_0.24.0", "h200_sxm__vllm_0.22.0"),
    "b200": ("b200_sxm__vllm_0.24.0", "b200_sxm__sglang_0.5.14"),
    "l40s": ("l40s__vllm_0.24.0", "l40s__sglang_0.5.14"),
    "b300": ("b300_sxm__vllm_0.24.0", "b300_sxm__sglang_0.5.14"),
    "gb200": ("gb200__vllm_0.24.0", "gb200__sglang_0.5.14"),
    "gb300": ("gb300__vllm_0.24.0", "gb300__sglang_0.5.14"),
    "rtx-pro-6000-server": ("rtx_pro_6000_server__vllm_0.24.0", "rtx_pro_6000_server__sglang_0.5.14"),
}
FITTED_TO = ("h100-sxm", "h200", "b200", "l40s")


class Rows(NamedTuple):
    """Calls of one library on one device: arrays of one length."""

    device: str
    engine: str
    backend: str
    phase: str  # prompts, or decode
    seqs: Array
    length: Array
    key_heads: Array
    heads: Array
    seconds: Array

    @property
    def unseen(self) -> Array:
        """The shapes that fits must not use."""
        return held_out(self.seqs, self.length, self.key_heads, self.heads)

    def where(self, chosen: Array) -> Rows:
        """Some of the rows: ``rows.where(rows.unseen)``"""
        return self._replace(**{name: getattr(self, name)[chosen] for name in COLUMNS[4:]})


def rows_of(device: str, prefix: str) -> Iterator[Rows]:
    """The rows of a table; of shapes that several models have the median."""
    columns = table(f"{prefix}__gdn_perf")
    kernels = columns["kernel_source"].astype(str)
    for phase, begin in (("prompts", "chunk_"), ("decode", "fused_")):
        chosen = np.char.startswith(kernels, begin) & (columns["num_tokens"] <= LONGEST)
        if not chosen.any():
            continue
        seconds = defaultdict(list)
        sizes = [columns[name][chosen] for name in ("batch_size", "seq_len", "num_k_heads", "num_v_heads")]
        for *shape, latency in zip(*sizes, columns["latency"][chosen], strict=True):
            seconds[tuple(map(float, shape))].append(latency / 1e3)
        library = "flashinfer" if kernels[chosen][0].endswith("flashinfer") else "triton"
        shapes = np.array(list(seconds)).T
        took = np.array([np.median(each) for each in seconds.values()])
        yield Rows(device, prefix.split("__")[1].replace("_", "@"), library, phase, *shapes, took)


def everything() -> list[Rows]:
    """All tables."""
    return [rows for device, prefixes in TABLES.items() for prefix in prefixes for rows in rows_of(device, prefix)]


def kept_rows() -> Iterator[Rows]:
    """The rows that travel with the project: those that no fit saw."""
    with gzip.open(KEPT, "rt", newline="", encoding="utf-8") as file:
        groups = defaultdict(list)
        for line in csv.DictReader(file):
            groups[tuple(line[name] for name in COLUMNS[:4])].append([float(line[name]) for name in COLUMNS[4:]])
    for words, figures in groups.items():
        yield Rows(*words, *np.array(figures).T)


def write_kept(every: list[Rows]) -> None:
    """Write the rows that fits must not use, six digits of each time."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for rows in every:
        some = rows.where(rows.unseen)
        whole = zip(*(getattr(some, name).astype(int) for name in COLUMNS[4:-1]), strict=True)
        lines = zip(sorted(zip(whole, some.seconds.tolist(), strict=True)), strict=True)
        writer.writerows([*rows[:4], *sizes, f"{seconds:.6g}"] for ((sizes, seconds),) in lines)
    with KEPT.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        packed.write(text.getvalue().encode())


def predicted(rule: DeltaRule, rows: Rows) -> Array:
    """Seconds of rows of prompts."""
    tokens = rows.seqs * rows.length
    prompts = Prompts.of(rows.heads, seqs=rows.seqs, tokens=tokens, squares=tokens * rows.length)
    return np.asarray(rule.seconds(catalog.hardware(rows.device), prompts))


def fit(begin: DeltaRule, parts: list[Rows]) -> DeltaRule:
    """The figures with the least mean error, each table counting the same."""
    seen = [rows.where(~rows.unseen) for rows in parts]
    names = [name for name, value in msgspec.structs.asdict(begin).items() if isinstance(value, float)]

    def rule(figures: Array) -> DeltaRule:
        return msgspec.structs.replace(begin, **dict(zip(names, np.exp(figures).tolist(), strict=True)))

    def loss(figures: Array) -> float:
        one = rule(figures)
        return float(np.mean([np.mean(np.abs(np.log(predicted(one, rows) / rows.seconds))) for rows in seen]))

    return rule(_least(loss, np.log([getattr(begin, name) for name in names])))


def _least(loss: Callable[[Array], float], begin: Array, steps: int = 1500) -> Array:
    """Where a function is least, by Nelder and Mead's simplex."""
    corners = [begin, *(begin + 0.3 * row for row in np.eye(len(begin)))]
    values = [loss(corner) for corner in corners]
    for _ in range(steps):
        order = np.argsort(values)
        corners, values = [corners[i] for i in order], [values[i] for i in order]
        middle = np.mean(corners[:-1], axis=0)
        for reach in (2.0, 1.0, -0.5):
            corner = middle + reach * (middle - corners[-1])
            value = loss(corner)
            if value < (values[0] if reach == 2 else values[-2]):
                corners[-1], values[-1] = corner, value
                break
        else:
            corners = [(corner + corners[0]) / 2 for corner in corners]
            values = [loss(corner) for corner in corners]
    return corners[int(np.argmin(values))]


def main() -> None:
    """Fit all that data/delta_rule.toml has."""
    if lacking := absent(*(f"{name}__gdn_perf" for names in TABLES.values() for name in names)):
        sys.exit(f"Nothing is written: {folder()} lacks {', '.join(lacking)}")
    every = everything()
    write_kept(every)
    prompts = [rows for rows in every if rows.phase == "prompts" and rows.device in FITTED_TO]
    hopper, blackwell = ("h100-sxm", "h200"), ("b200",)
    words: dict[str, Any] = {"architectures": (), "seen_on": (), "source": ""}
    programs = SequencePrograms(fixed=2e-6, start=1e-5, cycles=5e3, **words)
    words |= {"fixed": 2e-5, "triangle": 2e4, "work": 4e2, "bytes": 6e3, "cached": 3e3, "serial": 0.2, "chain": 3e3}
    chunks = ChunkKernels(**words)
    for label, begin, library, devices in (
        ("flashinfer, Hopper", programs, "flashinfer", hopper),
        ("flashinfer, Blackwell", programs, "flashinfer", blackwell),
        ("triton", chunks, "triton", FITTED_TO),
    ):
        found = fit(begin, [rows for rows in prompts if rows.backend == library and rows.device in devices])
        print(f"# {label}")
        print("\n".join(f"{k} = {v:.3g}" for k, v in msgspec.structs.asdict(found).items() if isinstance(v, float)))


if __name__ == "__main__":
    if missing():
        sys.exit(f"Nothing is written: {missing()}")
    main()
