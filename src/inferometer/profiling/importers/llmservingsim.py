"""LLMServingSim's profiles, CSV in µs: dense.csv, per_sequence.csv, attention.csv, moe.csv in ``<variant>/tp<N>/``.

The meta.yaml of the variant names the model, of which the catalogue has the sizes, and the GPU. vLLM's layers were
timed, so attention includes the write to the cache, and experts their router.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...inference.model_shapes import ModelShapes, model_shapes
from ...specs.catalog import precisions
from . import ImportedTable, RawTable, RowBatch, Unusable, row_batch, texts

ATTENTION = frozenset({"prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"})
MOE = frozenset({"tokens", "activated_experts", "time_us"})
NORMS = ("layernorm", "input_layernorm", "post_attention_layernorm", "final_layernorm")
EVEN = 0.05  # how far the experts in use may be from what even routing touches


class ProfiledRun(NamedTuple):
    """What a table by model leaves out."""

    model: ModelShapes
    tp: int
    dtype: str
    kv_dtype: str  # "" where it is the model's own
    gpu: str
    vllm: str

    @property
    def source(self) -> str:
        """Whose kernels they are."""
        return f"llmservingsim vllm {self.vllm}".strip()


def claims(columns: frozenset[str]) -> bool:
    """Whether a table has the columns of one of the four files."""
    return any(
        wanted <= columns
        for wanted in (ATTENTION, MOE, {"layer", "tokens", "time_us"}, {"layer", "sequences", "time_us"})
    )


def read(sheet: RawTable) -> ImportedTable:
    """Every row with a layer that is a kind of kernel."""
    run = _run(sheet.path)
    skipped: Counter[str] = Counter()
    seconds = sheet.numbers("time_us") * 1e-6
    columns = frozenset(sheet.columns)
    if columns >= ATTENTION:
        label, batches = "attention", _attention(sheet, run, seconds, skipped)
    elif columns >= MOE:
        label, batches = "moe", _moe(sheet, run, seconds, skipped)
    else:
        label, batches = ("dense" if "tokens" in columns else "per_sequence"), _layers(sheet, run, seconds, skipped)
    return ImportedTable(f"llmservingsim {label}", run.gpu, batches, +skipped, {"vllm": run.vllm} if run.vllm else {})


def _run(path: Path) -> ProfiledRun:
    """From the nearest meta.yaml above a table: its plain ``key: value`` lines."""
    place = next(
        (folder / "meta.yaml" for folder in list(path.absolute().parents)[:3] if (folder / "meta.yaml").is_file()), None
    )
    if place is None:
        raise Unusable(f"{path} needs LLMServingSim's meta.yaml in a folder above it, which names the model")
    try:
        said = dict(re.findall(r"^(\w+): *['\"]?([^'\"\n]+?)['\"]? *$", place.read_text(encoding="utf-8"), re.M))
    except (OSError, UnicodeDecodeError):
        raise Unusable(f"{place} cannot be read") from None
    folder = re.fullmatch(r"tp(\d+)", path.absolute().parent.name)
    degrees = re.fullmatch(r"\[(\d+)\]", said.get("tp_degrees", ""))
    if not (folder or degrees):
        raise Unusable(f"{path} does not say across how many GPUs the model was split: it should be in a folder tp<N>")
    tp = int((folder or degrees)[1])  # type: ignore[index]
    model = model_shapes(said.get("model", ""), tp) if said.get("model") else None
    if model is None or tp < 1:
        raise Unusable(f"{place} names the model {said.get('model', '')!r}, which the catalogue does not have")
    weights, _, cache = said.get("variant", model.dtype).partition("-kv")
    if weights not in precisions() or (cache and cache not in precisions()):
        raise Unusable(f"{place} names the variant {said['variant']!r}, which is not a known number format")
    gpu, vllm = said.get("gpu") or said.get("hardware", ""), said.get("vllm_version", "")
    return ProfiledRun(model, tp, weights, "" if cache == model.dtype else cache, gpu, vllm)


def _layers(sheet: RawTable, run: ProfiledRun, seconds: np.ndarray, skipped: Counter[str]) -> list[RowBatch]:
    layers = np.array(texts(sheet, "layer"))
    rows = sheet.numbers("tokens" if "tokens" in sheet.columns else "sequences", whole=True, least=1)
    batches = []
    for layer in np.unique(layers).tolist():
        at = np.flatnonzero(layers == layer)
        kind, dims = _shape(run.model, layer)
        if not dims:
            skipped[kind] += len(at)
            continue
        dtype = run.dtype if kind == "linear" and layer != "lm_head" else run.model.dtype
        batches.append(row_batch(kind, dtype, {"m": rows[at], **dims}, seconds[at], run.source, skipped))
    return batches


def _shape(model: ModelShapes, layer: str) -> tuple[str, dict[str, Any]]:
    """The kind of a layer and its sizes besides the rows; or why there is none."""
    if layer in NORMS:
        return "norm", {"n": model.hidden}
    if layer == "embedding":
        return "embedding", {"n": model.hidden, "rows": model.products.get("lm_head", (model.vocab, 0))[0]}
    if layer == "rotary_emb" and model.attention:
        return "rope", model.attention._asdict()
    if layer == "act_fn" and model.activation:
        return "activation", {"n": model.activation}
    if layer == "sampler":
        return "sampler", {"n": model.vocab}
    if layer == "qk_norm":
        return "two norms in one time", {}
    product = model.products.get(layer)
    return (
        ("linear", {"n": product[0], "k": product[1]})
        if product
        else (f"layer {layer!r} is not a known kind of kernel", {})
    )


def _attention(sheet: RawTable, run: ProfiledRun, seconds: np.ndarray, skipped: Counter[str]) -> list[RowBatch]:
    if run.model.attention is None:
        skipped[f"{run.model.name}'s attention differs from layer to layer"] += len(seconds)
        return []
    new, cached, seqs, past = (
        sheet.numbers(c, whole=True) for c in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    )
    other = np.array(texts(sheet, "layer")) != "attention" if "layer" in sheet.columns else np.zeros(len(new), bool)
    queries = sheet.numbers("decode_q_len", whole=True) if "decode_q_len" in sheet.columns else np.ones(len(new))
    drop = {
        "an attention of another kind": other,
        "several new tokens per decoding sequence": (seqs > 0) & (queries > 1),
        "nothing to do": (new == 0) & (seqs == 0),
    }
    shape = {**run.model.attention._asdict(), "kv_dtype": run.kv_dtype}
    cases: dict[str, tuple[np.ndarray, dict[str, Any]]] = {
        "prefill_attention": (seqs == 0, {"seqs": 1, "new": new, "context": cached + new}),
        "decode_attention": ((new == 0) & (seqs > 0), {"seqs": seqs, "context": past + 1}),
        "mixed_attention": ((new > 0) & (seqs > 0), {"new": new, "cached": cached, "seqs": seqs, "context": past + 1}),
    }
    batches = []
    for kind, (selected, dims) in cases.items():
        at = np.flatnonzero(selected)
        chosen = {key: value if np.ndim(value) == 0 else value[at] for key, value in dims.items()}
        reasons = {reason: wrong[at] for reason, wrong in drop.items()}
        batches.append(row_batch(kind, run.model.dtype, {**shape, **chosen}, seconds[at], run.source, skipped, reasons))
    return batches


def _moe(sheet: RawTable, run: ProfiledRun, seconds: np.ndarray, skipped: Counter[str]) -> list[RowBatch]:
    """The rows with as many experts in use as even routing touches: a shape cannot say another."""
    size = run.model.experts
    if size is None:
        skipped[f"{run.model.name} has no gated experts of one size"] += len(seconds)
        return []
    tokens, used = (sheet.numbers(c, whole=True, least=1) for c in ("tokens", "activated_experts"))
    ep = sheet.numbers("ep", whole=True, least=1) if "ep" in sheet.columns else np.ones(len(tokens), int)
    touched = size.experts / ep * (1 - (1 - size.top_k / size.experts) ** tokens)
    drop = {"more or fewer experts in use than even routing touches": np.abs(used / touched - 1) > EVEN}
    inner = np.where(ep > 1, size.inner * run.tp, size.inner)  # spread experts are not sliced, too
    dims = {
        "tokens": tokens,
        "hidden": size.hidden,
        "inner": inner,
        "experts": -(-size.experts // ep),  # of the fullest rank
        "top_k": size.top_k,
        "ep": ep,
    }
    return [row_batch("moe", run.dtype, dims, seconds, run.source, skipped, drop)]
