"""Vidur's profiles, CSV in ms, all of them fp16: mlp.csv, attention.csv, all_reduce.csv, send_recv.csv; their medians.

Sizes are the whole model's and are cut by the number of tensor-parallel workers. ``size`` of a collective is in bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from . import ImportedTable, RawTable, RowBatch, Unusable, needs, row_batch, texts

MLP = (
    "n_head",
    "n_kv_head",
    "n_embd",
    "n_expanded_embd",
    "vocab_size",
    "use_gated_mlp",
    "num_tokens",
    "num_tensor_parallel_workers",
)
ATTENTION = (
    "n_embd",
    "n_q_head",
    "n_kv_head",
    "num_tensor_parallel_workers",
    "batch_size",
    "prefill_chunk_size",
    "kv_cache_size",
    "is_prefill",
)
COLLECTIVE = ("num_workers", "size", "collective", "devices_per_node")
COLLECTIVES = {
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "all_to_all": "all_to_all",
    "send_recv": "send",
}
PREFIX, SUFFIX = "time_stats.", ".median"


def claims(columns: frozenset[str]) -> bool:
    """Whether a table has medians of operations."""
    return any(name.startswith(PREFIX) and name.endswith(SUFFIX) for name in columns)


def read(sheet: RawTable) -> ImportedTable:
    """The medians of every operation that is a kind of kernel."""
    columns = set(sheet.columns)
    skipped: Counter[str] = Counter()
    if set(COLLECTIVE) <= columns:
        return ImportedTable("vidur collectives", "", _collectives(sheet, skipped), +skipped, {})
    if "prefill_chunk_size" in columns:
        needs(sheet, ATTENTION, "Vidur's attention.csv")
        return ImportedTable("vidur attention", "", _attention(sheet, skipped), +skipped, {})
    if "num_tokens" in columns:
        needs(sheet, MLP, "Vidur's mlp.csv")
        return ImportedTable("vidur mlp", "", _mlp(sheet, skipped), +skipped, {})
    raise Unusable(
        f"{sheet.path} has times as Vidur writes them, but not the sizes of its mlp, attention or collectives"
    )


def _seconds(sheet: RawTable, name: str) -> np.ndarray:
    return sheet.numbers(f"{PREFIX}{name}{SUFFIX}", blank=float("nan")) * 1e-3


def _operations(sheet: RawTable) -> list[str]:
    return [c[len(PREFIX) : -len(SUFFIX)] for c in sheet.columns if c.startswith(PREFIX) and c.endswith(SUFFIX)]


def _flag(sheet: RawTable, name: str) -> np.ndarray:
    flags = []
    for index, word in enumerate(texts(sheet, name)):
        if word.lower() not in ("true", "false", "1", "0"):
            raise sheet.wrong(name, index, "True or False")
        flags.append(word.lower() in ("true", "1"))
    return np.array(flags)


def _mlp(sheet: RawTable, skipped: Counter[str]) -> list[RowBatch]:
    size = {name: sheet.numbers(name, whole=True, least=1) for name in MLP if name != "use_gated_mlp"}
    gated = _flag(sheet, "use_gated_mlp")
    m, tp, hidden = size["num_tokens"], size["num_tensor_parallel_workers"], size["n_embd"]
    dim = hidden // size["n_head"]
    heads, kv_heads = size["n_head"] // tp, np.maximum(size["n_kv_head"] // tp, 1)
    inner = size["n_expanded_embd"] // tp
    up = np.where(gated, 2, 1) * inner
    shapes: dict[str, tuple[str, dict[str, Any]]] = {
        "emb": ("embedding", {"m": m, "n": hidden, "rows": size["vocab_size"] // tp}),
        "input_layernorm": ("norm", {"m": m, "n": hidden}),
        "post_attention_layernorm": ("norm", {"m": m, "n": hidden}),
        "attn_pre_proj": ("linear", {"m": m, "n": (heads + 2 * kv_heads) * dim, "k": hidden}),
        "attn_rope": ("rope", {"m": m, "heads": heads, "kv_heads": kv_heads, "head_dim": dim}),
        "attn_post_proj": ("linear", {"m": m, "n": hidden, "k": heads * dim}),
        "mlp_up_proj": ("linear", {"m": m, "n": up, "k": hidden}),
        "mlp_act": ("activation", {"m": m, "n": up}),
        "mlp_down_proj": ("linear", {"m": m, "n": hidden, "k": inner}),
    }
    batches = []
    for name in _operations(sheet):
        seconds = _seconds(sheet, name)
        if name not in shapes:
            skipped[f"operation {name!r} is not a known kind of kernel"] += int((~np.isnan(seconds)).sum())
            continue
        kind, dims = shapes[name]
        drop = {"an activation without a gate is not a known kind of kernel": ~gated & (name == "mlp_act")}
        batches.append(_measured(kind, dims, seconds, "vidur sarathi", skipped, drop))
    return batches


def _attention(sheet: RawTable, skipped: Counter[str]) -> list[RowBatch]:
    size = {name: sheet.numbers(name, whole=True) for name in ATTENTION if name != "is_prefill"}
    prompt = _flag(sheet, "is_prefill")
    tp, seqs, cached = np.maximum(size["num_tensor_parallel_workers"], 1), size["batch_size"], size["kv_cache_size"]
    dim = size["n_embd"] // np.maximum(size["n_q_head"], 1)
    heads, kv_heads = size["n_q_head"] // tp, np.maximum(size["n_kv_head"] // tp, 1)
    new = np.where(prompt, size["prefill_chunk_size"], 1)
    dims = {"seqs": seqs, "heads": heads, "kv_heads": kv_heads, "head_dim": dim, "context": cached + new}
    backends = texts(sheet, "attention_backend") if "attention_backend" in sheet.columns else [""] * len(seqs)
    source = [f"vidur {word.rpartition('.')[2]}".strip() for word in backends]
    batches = []
    for name in _operations(sheet):
        seconds = _seconds(sheet, name)
        if name == "attn_prefill":
            batches.append(_measured("prefill_attention", dims | {"new": new}, seconds, source, skipped, {"": ~prompt}))
        elif name == "attn_decode":
            batches.append(_measured("decode_attention", dims, seconds, source, skipped, {"": prompt}))
        elif name == "attn_kv_cache_save":
            written = {"m": seqs * new, "kv_heads": kv_heads, "head_dim": dim}
            batches.append(_measured("kv_write", written, seconds, source, skipped))
        else:
            skipped[f"operation {name!r} is not a known kind of kernel"] += int((~np.isnan(seconds)).sum())
    return batches


def _collectives(sheet: RawTable, skipped: Counter[str]) -> list[RowBatch]:
    ranks, size = (sheet.numbers(name, whole=True, least=1) for name in ("num_workers", "size"))
    far = sheet.numbers("devices_per_node", whole=True, least=1) < ranks
    which = np.array(texts(sheet, "collective"))
    batches = []
    for name in _operations(sheet):
        seconds = _seconds(sheet, name)
        if name not in COLLECTIVES:
            skipped[f"collective {name!r} is not a known kind of kernel"] += int((~np.isnan(seconds)).sum())
            continue
        drop = {"": which != name, "ranks on several nodes, which a shape cannot express": far}
        batches.append(
            _measured(COLLECTIVES[name], {"bytes": size, "ranks": ranks}, seconds, "vidur nccl", skipped, drop)
        )
    return batches


def _measured(
    kind: str,
    dims: dict[str, Any],
    seconds: np.ndarray,
    source: str | list[str],
    skipped: Counter[str],
    drop: dict[str, np.ndarray] | None = None,
) -> RowBatch:
    """Rows of a kind; a cell that is empty is no measurement, and so is one of the other phase."""
    empty = np.isnan(seconds)
    reasons = {"": empty | (drop or {}).get("", False), **{k: v for k, v in (drop or {}).items() if k}}
    rows = row_batch(kind, "fp16", dims, seconds, source, skipped, reasons)
    skipped.pop("", None)
    return rows
