"""Public kernel tables as rows of our shapes: sizes, roofline terms, seconds.

    python tools/kernel_tables.py       writes the rows that no fit saw into benchmarks/data/kernels

Tables of AIConfigurator's (Apache-2.0): kernels of vLLM, SGLang and TensorRT-LLM on A100, H100, H200, B200 and L40S.
The whole tables are not part of the repository. It has what was fitted to them, and the rows that were kept out of the
fits, so that accuracy can be judged without them. A file `b200_sxm__trtllm_1.3.0rc20__moe_perf.parquet` is
`systems/data/b200_sxm/moe/trtllm/1.3.0rc20/moe_perf.parquet` of github.com/ai-dynamo/aiconfigurator at 095f58a.
"""

from __future__ import annotations

import csv
import gzip
import importlib.util
import os
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferometer.costs.kernels import Terms
from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.measured import MeasuredKernel, read_rows
from inferometer.specs import catalog

ROOT = Path(__file__).parent.parent
Array = np.ndarray
TABLES = {  # device -> engine -> how its files begin
    "a100-sxm-80gb": {"vllm": "a100_sxm__vllm_0.14.0"},
    "l40s": {"vllm": "l40s__vllm_0.24.0"},
    "h100-sxm": {
        "vllm": "h100_sxm__vllm_0.24.0",
        "trtllm": "h100_sxm__trtllm_1.3.0rc20",
        "sglang": "h100_sxm__sglang_0.5.14",
    },
    "h200": {
        "vllm": "h200_sxm__vllm_0.24.0",
        "trtllm": "h200_sxm__trtllm_1.3.0rc20",
        "sglang": "h200_sxm__sglang_0.5.14",
    },
    "b200": {"vllm": "b200_sxm__vllm_0.24.0", "trtllm": "b200_sxm__trtllm_1.3.0rc20"},
}
NUMBERS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "int4_wo": "w4a16",
    "w4a16_mxfp4": "mxfp4",
}


# Format of experts -> the kernels that its table is of, where an engine has several (device, engine): TensorRT-LLM's
# backend TRTLLM, which runs unless attention is data-parallel. In fp8 blocks that backend was not timed, DEEPGEMM was.
EXPERT_KERNELS = {
    ("b200", "trtllm"): {"nvfp4": "moe_torch_flow_min_latency", "fp8-block": ""},
    ("h200", "sglang"): {"bf16": "sglang_fused_moe_triton"},
    ("h100-sxm", "sglang"): {"bf16": "sglang_fused_moe_triton"},
}


class TableRows(NamedTuple):
    """Rows of one kind and table on one device: ``dims`` and ``seconds`` are arrays of one length."""

    device: str
    engine: str
    kind: str
    table_key: str
    dims: dict[str, Array]
    terms: Terms
    seconds: Array
    unseen: Array  # rows that fits must not use


class SizedRows(NamedTuple):
    """The same as a table has them: what the shapes' sizes are called in kernel files, and seconds."""

    kind: str
    number: str  # format of the products
    sizes: dict[str, Any]  # arrays of one length, or one value for all rows
    seconds: Array
    unseen: Array


def folder() -> Path:
    """Where the tables lie: ``measured/kernel_tables`` of the folder that INFEROMETER_SHARED names."""
    shared = Path(os.environ.get("INFEROMETER_SHARED", ROOT.parent / "shared"))
    return shared / "measured" / "kernel_tables"


def missing() -> str:
    """Why the tables cannot be read, as one sentence; empty if they can."""
    if not folder().is_dir():
        return f"{folder()} is not there: set INFEROMETER_SHARED to the folder with measured/kernel_tables"
    if importlib.util.find_spec("pyarrow") is None:
        return "the kernel tables are Parquet, which needs pyarrow: pip install pyarrow"
    return ""


def absent(*names: str) -> list[str]:
    """Those of some tables that are not there: ``absent("b200_sxm__trtllm_1.3.0rc20__moe_perf")``"""
    return [name for name in names if not (folder() / f"{name}.parquet").exists()]


@cache
def table(name: str) -> dict[str, Array]:
    """A Parquet file as columns; empty where there is none."""
    import pyarrow.parquet as parquet

    path = folder() / f"{name}.parquet"
    if not path.exists():
        return {}
    read = parquet.read_table(path)
    return {name: np.asarray(read[name].to_pylist()) for name in read.column_names}


def held_out(*sizes: Array, share: int = 4) -> Array:
    """One shape in four, by a hash of the sizes: whole weights, whole batches, so that no neighbour gives it away."""
    return np.array(
        [zlib.crc32(repr([float(x) for x in row]).encode()) % share == 0 for row in zip(*sizes, strict=True)]
    )


def _rows(device: str, engine: str, rows: SizedRows) -> TableRows:
    terms = row_terms(rows.kind, rows.number, rows.sizes, catalog.hardware(device))
    assert terms is not None
    return TableRows(device, engine, rows.kind, terms.table_key, terms.dims, terms.terms, rows.seconds, rows.unseen)


def products(device: str, engine: str) -> Iterator[SizedRows]:
    """Matrix products. vLLM's block-scaled fp8 rows were timed without graphs (a floor of 50 µs): left out.

    So are the fp8 rows of one token on B200. They take 12 to 14 µs longer than those of two to eight tokens whether the
    weights have 2 or 1,000 MB: that is no product's time, and no other device, format or number of tokens shows it.
    TensorRT-LLM's rows on B200 have the pass that rounds the input in them (12 µs in fp8 and 6 in nvfp4 for the
    smallest weights, 2 in bf16), which the engine fuses with the operator before: left out, too.
    """
    if (device, engine) == ("b200", "trtllm"):
        return
    columns = table(f"{TABLES[device][engine]}__gemm_perf")
    for number in sorted(set(columns.get("gemm_dtype", []))):
        if number == "fp8_block" and engine == "vllm":
            continue
        chosen = columns["gemm_dtype"] == number
        if (device, number) == ("b200", "fp8"):
            chosen &= columns["m"] > 1
        m, n, k = (columns[c][chosen].astype(float) for c in "mnk")
        seconds = columns["latency"][chosen] / 1e3
        yield SizedRows("linear", NUMBERS[number], {"m": m, "n": n, "k": k}, seconds, held_out(n, k))


def attentions(device: str, engine: str) -> Iterator[SizedRows]:
    """Prefill and decode attention by head size and cache format, without windows (those see a shorter context)."""
    for kind, name in (("decode_attention", "generation"), ("prefill_attention", "context")):
        columns = table(f"{TABLES[device][engine]}__{name}_attention_perf")
        if not columns:
            continue
        whole = (columns.get("window_size", np.zeros(len(columns["latency"]))) == 0) & (
            columns["attn_dtype"] == "bfloat16"
        )
        whole &= (columns["isl"] > 1) | (kind == "decode_attention")
        for size in sorted(set(columns["head_dim"])):
            for kept in sorted(set(columns["kv_cache_dtype"])):
                chosen = whole & (columns["head_dim"] == size) & (columns["kv_cache_dtype"] == kept)
                if chosen.sum() < 400:
                    continue
                new = columns["isl"][chosen].astype(float)
                context = new + columns["step"][chosen]
                seqs, heads, kv = (
                    columns[c][chosen].astype(float) for c in ("batch_size", "num_heads", "num_key_value_heads")
                )
                sizes = {
                    "seqs": seqs,
                    "new": new,
                    "context": context,
                    "heads": heads,
                    "kv_heads": kv,
                    "head_dim": int(size),
                    "kv_dtype": NUMBERS[kept],
                }
                seconds = columns["latency"][chosen] / 1e3
                yield SizedRows(kind, "bf16", sizes, seconds, held_out(seqs, context, heads, kv))


def latents(device: str, engine: str) -> Iterator[SizedRows]:
    """Latent attention (MLA): prompts with 192 and 128 elements a head, decoding over the 512 + 64 of the latent."""
    for kind, name in (("decode_attention", "generation"), ("prefill_attention", "context")):
        columns = table(f"{TABLES[device][engine]}__{name}_mla_perf")
        if not columns:
            continue
        for kept in sorted(set(columns["kv_cache_dtype"])):
            chosen = (columns["kv_cache_dtype"] == kept) & ((columns["isl"] > 1) | (name == "generation"))
            seqs, new, heads = (columns[c][chosen].astype(float) for c in ("batch_size", "isl", "num_heads"))
            wide = name == "generation"
            sizes = {
                "seqs": seqs,
                "new": new,
                "context": new + columns["step"][chosen],
                "heads": heads,
                "kv_heads": np.ones_like(heads) if wide else heads,
                "head_dim": 576 if wide else 192,
                "v_dim": 512 if wide else 128,
                "kv_dtype": NUMBERS[kept],
            }
            seconds = columns["latency"][chosen] / 1e3
            yield SizedRows(kind, "bf16", sizes, seconds, held_out(seqs, new, columns["step"][chosen], heads))


def mixtures(device: str, engine: str) -> Iterator[SizedRows]:
    """Routed experts, evenly loaded: every expert gets its share, so all that can be are touched.

    vLLM's per-tensor fp8 on Hopper was timed for one kind of checkpoint, and its kernel takes four times as long as the
    block-scaled one; what most checkpoints run is like the latter, so those rows are left out.
    """
    columns = table(f"{TABLES[device][engine]}__moe_perf")
    even = "balanced" if "balanced" in set(columns.get("distribution", [])) else "power_law_1.01"
    odd = {"fp8"} if engine == "vllm" and catalog.hardware(device).architecture == "hopper" else set()
    kernels = columns.get("kernel_source", np.zeros(0)).astype(str)
    formats = np.array([expert_format(*one) for one in zip(columns.get("moe_dtype", []), kernels, strict=True)])
    plain = (columns["distribution"] == even) & ~np.char.endswith(kernels, "nongated") if columns else np.zeros(0)
    for number in sorted({*formats} - odd - {""}):
        chosen = plain & (formats == number)
        kernel = EXPERT_KERNELS.get((device, engine), {}).get(number)
        if kernel == "":
            continue
        if kernel is not None:
            chosen &= kernels == kernel
        names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
        tokens, hidden, inner, top_k, count, tp, ep = (columns[name][chosen].astype(float) for name in names)
        sizes = {
            "tokens": tokens,
            "hidden": hidden,
            "inner": inner / tp,
            "experts": count / ep,
            "top_k": top_k,
            "ep": ep,
            "even": 1,
        }
        seconds = columns["latency"][chosen] / 1e3
        yield SizedRows("moe", number, sizes, seconds, held_out(tokens, hidden, inner / tp, count))


def expert_format(number: str, kernel: str) -> str:
    """Our name of a format, and of the kernel where an engine has two for it; '' for none of ours.

    ``expert_format("w4a16_mxfp4", "vllm_gptossmxfp4moe_marlin_marlinexperts")  # "mxfp4-marlin"``
    """
    name = NUMBERS.get(number, "")
    return f"{name}-marlin" if name == "mxfp4" and "marlin" in kernel else name


def everything(device: str, engine: str) -> Iterator[TableRows]:
    """All rows of a device and an engine, table by table."""
    for part in (products, attentions, latents, mixtures):
        for rows in part(device, engine):
            yield _real(_rows(device, engine, rows))


def _real(rows: TableRows) -> TableRows:
    """Without rows beyond the device's roof: their inputs were in the cache."""
    real = rows.seconds >= 0.98 * rows.terms.roofline
    return rows._replace(
        dims={k: v[real] if isinstance(v, np.ndarray) else v for k, v in rows.dims.items()},
        terms=Terms(rows.terms.compute[real], rows.terms.memory[real], 0.0, 0.0),
        seconds=rows.seconds[real],
        unseen=rows.unseen[real],
    )


# ------------------------------------------------------------------ rows that travel with the project


KEPT = ROOT / "benchmarks" / "data" / "kernels"  # <device>_<engine>_<kind>.csv.gz
CONSTANT = ("head_dim", "v_dim", "kv_dtype", "even")  # sizes that a table has one value of


def kept_rows(device: str, engine: str) -> Iterator[TableRows]:
    """The rows of a device and an engine that no fit saw, as benchmarks/data/kernels has them."""
    for path in sorted(KEPT.glob(f"{device}_{engine}_*.csv.gz")):
        kind = path.name.removesuffix(".csv.gz").removeprefix(f"{device}_{engine}_")
        with gzip.open(path, "rt", newline="", encoding="utf-8") as file:
            head, *lines = csv.reader(file)
        columns = dict(zip(head, zip(*lines, strict=True), strict=True))
        words = np.array([columns.pop(name) for name in ("dtype", *CONSTANT) if name in columns])
        names = [name for name in CONSTANT if name in head]
        figures = {name: np.array(values, float) for name, values in columns.items()}
        for one in np.unique(words, axis=1).T:
            chosen = (words == one[:, None]).all(axis=0)
            sizes: dict[str, Any] = {name: values[chosen] for name, values in figures.items()}
            given = {name: value for name, value in zip(names, one[1:].tolist(), strict=True) if value}
            sizes |= {name: value if name == "kv_dtype" else int(value) for name, value in given.items()}
            seconds = sizes.pop("seconds")
            rows = SizedRows(kind, str(one[0]), sizes, seconds, np.ones(len(seconds), bool))
            yield _real(_rows(device, engine, rows))


def write_kept() -> None:
    """Write the rows of all tables that fits must not use, six digits of each time."""
    KEPT.mkdir(exist_ok=True)
    for device, engines in TABLES.items():
        for engine in engines:
            by_kind: dict[str, list[SizedRows]] = defaultdict(list)
            for part in (products, attentions, latents, mixtures):
                for rows in part(device, engine):
                    by_kind[rows.kind].append(rows)
            for kind, parts in by_kind.items():
                _write(KEPT / f"{device}_{engine}_{kind}.csv.gz", parts)


def _write(path: Path, parts: list[SizedRows]) -> None:
    names = list({name: None for rows in parts for name in rows.sizes})
    lines: list[tuple[Any, ...]] = []
    for rows in parts:
        count = int(rows.unseen.sum())
        sizes = [rows.sizes.get(name, "") for name in names]  # only latent attention has a size of its values
        columns = [x[rows.unseen].astype(int).tolist() if isinstance(x, np.ndarray) else [x] * count for x in sizes]
        seconds = [f"{x:.6g}" for x in rows.seconds[rows.unseen]]
        lines += sorted(zip([rows.number] * count, *columns, seconds, strict=True))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=0) as packed:
        text = "\n".join(",".join(map(str, line)) for line in [("dtype", *names, "seconds"), *lines])
        packed.write(text.encode() + b"\n")


SPARSE = ("chunk_scan", "state_update", "sampler")  # kinds of few rows, none of which is kept apart


# Rows of h200_kernels.csv waited for every replay of 1.5 ms, and so have a graph's start in them. Replays that follow
# each other without a pause take 0.958 of that in 162 large products of up to 192 rows (the median; from 0.95 to 0.97),
# and an engine's steps do follow each other. Decode attention, too short for a row of its own to say much, is taken
# as that.
BACK_TO_BACK = ROOT / "benchmarks" / "data" / "h200_kernels_back_to_back.csv"
WITHOUT_START = 0.958


def without_start(row: MeasuredKernel) -> MeasuredKernel:
    """A row of decode attention without the start of a graph that its timing had in it."""
    return row._replace(seconds=row.seconds * WITHOUT_START) if row.kind == "decode_attention" else row


def _identity(row: MeasuredKernel) -> tuple[object, ...]:
    return row.kind, row.dtype, *sorted(row.sizes.items())


def own_rows() -> Iterator[TableRows]:
    """Our own rows of one H200, table by table; of kinds with few rows those of all H200s."""
    device = catalog.hardware("h200")
    groups: dict[tuple[str, str], list[tuple[dict[str, Any], float]]] = defaultdict(list)
    first, *others = sorted((ROOT / "benchmarks" / "data").glob("h200_kernels*.csv"))
    again = {_identity(row): row for row in read_rows(BACK_TO_BACK)}
    rows = [again.get(_identity(row)) or without_start(row) for row in read_rows(first)]
    rows += [row for path in others for row in read_rows(path) if row.kind in SPARSE]
    for row in rows:
        terms = row_terms(row.kind, row.dtype, row.sizes, device)
        if terms is not None and "method" not in row.sizes:
            groups[row.kind, row.dtype if not row.kind.endswith("_attention") else terms.table_key].append(
                (row.sizes, row.seconds)
            )
    for (kind, number), rows in groups.items():
        sizes = {key: np.array([one[key] for one, _ in rows], float) for key in rows[0][0]}
        if kind.endswith("_attention"):
            sizes["head_dim"] = float(sizes["head_dim"][0])
        fixed = [
            sizes[key]
            for key in ("n", "k", "seqs", "context", "heads", "hidden", "inner", "tokens")
            if isinstance(sizes.get(key), np.ndarray)
        ]
        number = "bf16" if kind.endswith("_attention") else number
        apart = np.zeros(len(rows), bool) if kind in SPARSE else held_out(*fixed)
        took = np.array([seconds for _, seconds in rows])
        yield _rows("h200", "own", SizedRows(kind, number, sizes, took, apart))


if __name__ == "__main__":
    if missing():
        sys.exit(f"Nothing is written: {missing()}")
    write_kept()
