"""LLM-Profile's layers, CSV in ns: ``hardware,model,layer_name,input,kv_cache,latency(ns)``, one sequence a row.

Sizes come from the catalogue's model of that name, and so does the 16-bit format, which the file does not say. Of a
model that is not there they come from the config in the record that ``profile MODEL`` writes beside its file.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from ...base.errors import InferometerError
from ..model_shapes import ModelShapes, model_shapes, shapes_of
from . import ImportedTable, RawTable, RowBatch, Unusable, row_batch, texts

COLUMNS = ("hardware", "model", "layer_name", "input", "kv_cache", "latency(ns)")
NORMS = ("input_layernorm", "post_layernorm", "post_attention_layernorm", "final_layernorm")
NO_KIND = {
    "act_fn": "an activation without its gate has no kind",
    **dict.fromkeys(("expert.w1", "expert.w2", "expert.w3"), "an expert's share of the tokens is not in the file"),
    **dict.fromkeys(("qk_matmul", "softmax", "sv_matmul"), "a part of eager attention has no kind"),
}


def claims(columns: frozenset[str]) -> bool:
    """Whether a table has LLM-Profile's columns."""
    return set(COLUMNS) <= columns


def read(sheet: RawTable) -> ImportedTable:
    """Every layer that is a kernel of its own."""
    hardware = sorted(set(texts(sheet, "hardware")))
    if len(hardware) > 1:
        raise Unusable(
            f"{sheet.path} has rows of several devices: {', '.join(hardware[:8])}; one file is of one device"
        )
    skipped: Counter[str] = Counter()
    names, layers = np.array(texts(sheet, "model")), np.array(texts(sheet, "layer_name"))
    new, cached = sheet.numbers("input", whole=True, least=1), sheet.numbers("kv_cache", whole=True)
    seconds = sheet.numbers("latency(ns)") * 1e-9
    batches: list[RowBatch] = []
    for name in np.unique(names).tolist():
        model = model_shapes(name) or _recorded_shapes(sheet.path, name)
        for layer in np.unique(layers[names == name]).tolist():
            at = np.flatnonzero((names == name) & (layers == layer))
            if model is None:
                skipped[f"model {name!r} is not in the catalogue, and no record beside the file has its config"] += len(
                    at
                )
            elif layer == "attn":
                batches += _attention(model, new[at], cached[at], seconds[at], skipped)
            else:
                kind, dims = _shape(model, layer)
                if dims:
                    more = {"m": new[at], **dims}
                    batches.append(row_batch(kind, model.dtype, more, seconds[at], "llm-profile torch", skipped))
                else:
                    skipped[kind] += len(at)
    return ImportedTable("llm-profile layers", hardware[0] if hardware else "", batches, +skipped, {})


def _recorded_shapes(path: Path, name: str) -> ModelShapes | None:
    """The shapes of the model whose config the record beside a file has; None where there is none, or of another."""
    try:
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        if record.get("model") != name or not isinstance(record.get("config"), dict):
            return None
        return shapes_of(name, record["config"])
    except (OSError, ValueError, AttributeError, InferometerError):
        return None


def _shape(model: ModelShapes, layer: str) -> tuple[str, dict[str, Any]]:
    """The kind of a layer and its sizes besides the tokens; or why there is none."""
    heads = model.attention
    if layer in NORMS:
        return "norm", {"n": model.hidden}
    if layer == "embedding":
        return "embedding", {"n": model.hidden, "rows": model.vocab}
    if layer == "rope" and heads:
        return "rope", heads._asdict()
    if layer in ("q_proj", "k_proj", "v_proj") and heads:
        width = heads.heads if layer == "q_proj" else heads.kv_heads
        return "linear", {"n": width * heads.head_dim, "k": model.hidden}
    both = model.products.get("gate_up_proj")
    if layer in ("gate_proj", "up_proj") and both:
        return "linear", {"n": both[0] // 2, "k": both[1]}
    product = model.products.get("router" if layer == "gate" else layer)
    if product:
        return "linear", {"n": product[0], "k": product[1]}
    return NO_KIND.get(layer, f"layer {layer!r} has no kind"), {}


def _attention(
    model: ModelShapes, new: np.ndarray, cached: np.ndarray, seconds: np.ndarray, skipped: Counter[str]
) -> list[RowBatch]:
    if model.attention is None:
        skipped[f"{model.name}'s attention differs from layer to layer"] += len(new)
        return []
    decoding = cached > 0
    batches = []
    for kind, at in (("prefill_attention", ~decoding), ("decode_attention", decoding & (new == 1))):
        dims = {"seqs": 1, **model.attention._asdict(), "new": new[at], "context": (new + cached)[at]}
        batches.append(row_batch(kind, model.dtype, dims, seconds[at], "llm-profile torch", skipped))
    skipped["several tokens after a cached part"] += int((decoding & (new > 1)).sum())
    return batches
