"""Public kernel tables (shared folder, Parquet) as rows of our shapes: sizes, roofline terms, seconds.

Tables of AIConfigurator's (Apache-2.0): vLLM and TensorRT-LLM kernels on A100, H100, H200, B200 and L40S. They are read
where they lie; the repository holds only what was fitted to them.
"""

from __future__ import annotations

import importlib.util
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from inferometer.costs.kernels import Terms
from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.measured import read_rows
from inferometer.specs import catalog

ROOT = Path(__file__).parent.parent
Array = np.ndarray
TABLES = {  # device -> engine -> how its files begin
    "a100-sxm-80gb": {"vllm": "a100_sxm__vllm_0.14.0"},
    "l40s": {"vllm": "l40s__vllm_0.24.0"},
    "h100-sxm": {"vllm": "h100_sxm__vllm_0.24.0", "trtllm": "h100_sxm__trtllm_1.3.0rc20"},
    "h200": {"vllm": "h200_sxm__vllm_0.24.0", "trtllm": "h200_sxm__trtllm_1.3.0rc20"},
    "b200": {"vllm": "b200_sxm__vllm_0.24.0"},
}
NUMBERS = {
    "bfloat16": "bf16",
    "fp8": "fp8",
    "fp8_block": "fp8-block",
    "nvfp4": "nvfp4",
    "int4_wo": "w4a16",
    "w4a16_mxfp4": "mxfp4",
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


def _rows(
    device: str, engine: str, kind: str, number: str, sizes: dict[str, Any], ms: Array, unseen: Array
) -> TableRows:
    terms = row_terms(kind, number, sizes, catalog.hardware(device))
    assert terms is not None
    return TableRows(device, engine, kind, terms.table_key, terms.dims, terms.terms, ms / 1e3, unseen)


def products(device: str, engine: str) -> Iterator[TableRows]:
    """Matrix products. vLLM's block-scaled fp8 rows were timed without graphs (a floor of 50 µs): left out.

    So are the fp8 rows of one token on B200. They take 12 to 14 µs longer than those of two to eight tokens whether the
    weights have 2 or 1,000 MB: that is no product's time, and no other device, format or number of tokens shows it.
    """
    columns = table(f"{TABLES[device][engine]}__gemm_perf")
    for number in sorted(set(columns.get("gemm_dtype", []))):
        if number == "fp8_block" and engine == "vllm":
            continue
        chosen = columns["gemm_dtype"] == number
        if (device, number) == ("b200", "fp8"):
            chosen &= columns["m"] > 1
        m, n, k = (columns[c][chosen].astype(float) for c in "mnk")
        yield _rows(
            device,
            engine,
            "linear",
            NUMBERS[number],
            {"m": m, "n": n, "k": k},
            columns["latency"][chosen],
            held_out(n, k),
        )


def attentions(device: str, engine: str) -> Iterator[TableRows]:
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
                yield _rows(
                    device, engine, kind, "bf16", sizes, columns["latency"][chosen], held_out(seqs, context, heads, kv)
                )


def latents(device: str, engine: str) -> Iterator[TableRows]:
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
            yield _rows(
                device,
                engine,
                kind,
                "bf16",
                sizes,
                columns["latency"][chosen],
                held_out(seqs, new, columns["step"][chosen], heads),
            )


def mixtures(device: str, engine: str) -> Iterator[TableRows]:
    """Routed experts, evenly loaded: every expert gets its share, so all that can be are touched.

    vLLM's per-tensor fp8 on Hopper was timed for one kind of checkpoint, and its kernel takes four times as long as the
    block-scaled one; what most checkpoints run is like the latter, so those rows are left out.
    """
    columns = table(f"{TABLES[device][engine]}__moe_perf")
    even = "balanced" if "balanced" in set(columns.get("distribution", [])) else "power_law_1.01"
    odd = {"fp8"} if engine == "vllm" and catalog.hardware(device).architecture == "hopper" else set()
    for number in sorted(set(columns.get("moe_dtype", [])) & set(NUMBERS) - odd):
        chosen = (columns["moe_dtype"] == number) & (columns["distribution"] == even)
        chosen &= ~np.char.endswith(columns["kernel_source"].astype(str), "nongated")
        names = ("num_tokens", "hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size", "moe_ep_size")
        tokens, hidden, inner, top_k, count, tp, ep = (columns[name][chosen].astype(float) for name in names)
        sizes = {
            "tokens": tokens,
            "hidden": hidden,
            "inner": inner / tp,
            "experts": count / ep,
            "top_k": top_k,
            "ep": ep,
            "even": True,
        }
        yield _rows(
            device,
            engine,
            "moe",
            NUMBERS[number],
            sizes,
            columns["latency"][chosen],
            held_out(tokens, hidden, inner / tp, count),
        )


def everything(device: str, engine: str) -> Iterator[TableRows]:
    """All rows of a device and an engine, table by table; rows beyond the device's roof (inputs in cache) left out."""
    for part in (products, attentions, latents, mixtures):
        for rows in part(device, engine):
            real = rows.seconds >= 0.98 * rows.terms.roofline
            yield rows._replace(
                dims={k: v[real] if isinstance(v, np.ndarray) else v for k, v in rows.dims.items()},
                terms=Terms(rows.terms.compute[real], rows.terms.memory[real], 0.0, 0.0),
                seconds=rows.seconds[real],
                unseen=rows.unseen[real],
            )


SPARSE = ("chunk_scan", "state_update", "sampler")  # kinds of few rows, none of which is kept apart


def own_rows() -> Iterator[TableRows]:
    """Our own rows of one H200, table by table; of kinds with few rows those of all H200s."""
    device = catalog.hardware("h200")
    groups: dict[tuple[str, str], list[tuple[dict[str, Any], float]]] = defaultdict(list)
    first, *others = sorted((ROOT / "benchmarks" / "data").glob("h200_kernels*.csv"))
    rows = [*read_rows(first), *(row for path in others for row in read_rows(path) if row.kind in SPARSE)]
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
        yield _rows("h200", "own", kind, number, sizes, np.array([took for _, took in rows]) * 1e3, apart)
