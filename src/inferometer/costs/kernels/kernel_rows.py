"""Rows of a kernel profile: the one schema of its CSV file, and what a row says in the terms of predictions.

A row is ``kind,dtype,shape,seconds,source``. Its shape is one cell, ``m=8 n=4096 k=4096``, the keys always in the order
of `SHAPE_KEYS`; a key with a default is written only where it differs from it. A row that must not be used carries a
flag, the text after `` !`` in its source. `row_terms` turns kind, format and sizes, floats or arrays, into the shape
and the roofline terms that operators have, by the operators' own formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...base.symbols import Value, evaluate, maximum_of, minimum_of
from ...base.symbols import names as s
from ...network.operators import Op, attention, chunk_scan, experts, linear, sampler, state_update
from ...specs import catalog
from ...specs.structs import Hardware
from .. import precision
from .source import Terms

HEADER = ("kind", "dtype", "shape", "seconds", "source")
SHAPE_KEYS: dict[str, tuple[str, ...]] = {
    "linear": ("m", "n", "k"),
    "prefill_attention": ("seqs", "heads", "kv_heads", "head_dim", "new", "context", "window", "kv_dtype"),
    "decode_attention": ("seqs", "heads", "kv_heads", "head_dim", "context", "window", "kv_dtype"),
    "mixed_attention": ("new", "cached", "seqs", "context", "heads", "kv_heads", "head_dim", "kv_dtype"),
    "mla_prefill": ("seqs", "heads", "new", "context", "qk_dim", "v_dim", "kv_dtype"),
    "mla_decode": ("seqs", "heads", "context", "kv_rank", "rope_dim", "kv_dtype"),
    "moe": ("tokens", "hidden", "inner", "experts", "top_k", "skew", "ep"),
    "moe_routing": ("tokens", "experts", "top_k", "chosen"),
    "chunk_scan": ("m", "seqs", "heads", "value_dim", "key_dim", "groups", "chunk"),  # dtype: of the state
    "state_update": ("seqs", "heads", "value_dim", "key_dim", "groups"),
    "conv1d": ("m", "seqs", "n", "k"),
    "gdn_prefill": ("m", "seqs", "key_heads", "value_heads", "key_dim", "value_dim"),
    "gdn_decode": ("seqs", "key_heads", "value_heads", "key_dim", "value_dim"),
    "norm": ("m", "n"),
    "gated_norm": ("m", "n", "groups"),
    "activation": ("m", "n"),
    "rope": ("m", "heads", "kv_heads", "head_dim"),
    "kv_write": ("m", "kv_heads", "head_dim", "kv_dtype"),
    "embedding": ("m", "n", "rows"),
    "sampler": ("m", "n", "method"),
    "quantize": ("m", "n", "block"),
    "copy": ("bytes",),
    "launch": ("kernels",),
    "graph_replay": ("kernels",),
    "all_reduce": ("bytes", "ranks", "library"),
    "all_gather": ("bytes", "ranks", "library"),
    "reduce_scatter": ("bytes", "ranks", "library"),
    "all_to_all": ("bytes", "ranks", "library"),
    "send": ("bytes", "ranks", "library"),
}
SHAPE_DEFAULTS: dict[str, Any] = {
    "window": 0,
    "kv_dtype": "",
    "skew": 0.0,
    "ep": 1,
    "chosen": 0,
    "block": 0,
    "method": "",
    "library": "",
}
FLAG_MARK = " !"  # what separates a source from its flags


class KernelRow(NamedTuple):
    """One line of the file: ``KernelRow("norm", "bf16", "m=8 n=64", 2e-6, "vllm")``"""

    kind: str
    dtype: str
    shape: str
    seconds: float
    source: str

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What makes it the same row whatever its time and its flags are."""
        return self.kind, self.dtype, self.shape, unflagged(self.source)


def required_sizes(kind: str) -> tuple[str, ...]:
    """The keys that a shape of a kind must have: ``required_sizes("moe")  # ("tokens", "hidden", …, "top_k")``"""
    return tuple(key for key in SHAPE_KEYS.get(kind, ()) if key not in SHAPE_DEFAULTS)


def shape_cells(kind: str, dims: Mapping[str, Sequence[Any]]) -> list[str]:
    """Shape cells of many rows: ``shape_cells("norm", {"m": [1, 8], "n": [64, 64]})  # ["m=1 n=64", "m=8 n=64"]``"""
    columns = [_size_texts(key, dims[key]) for key in SHAPE_KEYS[kind] if key in dims]
    return ["".join(row)[1:] for row in zip(*columns, strict=True)]


def _size_texts(key: str, values: Iterable[Any]) -> list[str]:
    default = SHAPE_DEFAULTS.get(key)
    return ["" if value == default else f" {key}={value:g}" if key == "skew" else f" {key}={value}" for value in values]


def parse_shape(cell: str) -> dict[str, Any]:
    """The sizes of a shape cell: ``parse_shape("m=8 n=64")  # {"m": 8, "n": 64}``; ValueError if one is no number."""
    return dict(_parse_size(text) for text in cell.split())


def _parse_size(text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    try:
        return key, int(value)
    except ValueError:
        return key, value if value.isidentifier() or "-" in value else float(value)


def is_flagged(source: str) -> bool:
    """Whether a row must not be used: ``is_flagged("vllm 0.24.0 !roof")  # True``"""
    return FLAG_MARK in source


def unflagged(source: str) -> str:
    """A source without its flags: ``unflagged("vllm 0.24.0 !floor")  # "vllm 0.24.0"``"""
    return source.partition(FLAG_MARK)[0]


# ------------------------------------------------------------------ a row as predictions see it

_PRODUCT = linear("product", s.k, s.n, m=s.m)
_EXPERTS = experts("experts", s.hidden, s.inner, count=s.count, top_k=s.top_k)
_HEADS = {
    phase: attention(
        "attention", phase, heads=s.heads, kv_heads=s.kv_heads, qk_dim=s.qk_dim, v_dim=s.v_dim, kv_width=s.kv_width
    )
    for phase in ("prefill", "decode")
}
_STATE_SIZES = {"heads": s.heads, "key_dim": s.key_dim, "value_dim": s.value_dim, "groups": s.groups}
_STATES = {
    "chunk_scan": chunk_scan("ssm_scan", **_STATE_SIZES, chunk=s.chunk),
    "state_update": state_update("ssm_scan", **_STATE_SIZES),
}
_SAMPLER = sampler("sampler", s.n)
_MLA_LATENT = 576  # elements of DeepSeek's cached latent (512 + 64): keys and values are one, and read once


class RowTerms(NamedTuple):
    """A row as predictions see it: the table that it belongs to, its shape and its roofline terms."""

    table_key: str  # a number format, or a head size: see `surfaces.head_table_key`
    dims: dict[str, Value]
    terms: Terms


def row_terms(kind: str, dtype: str, sizes: Mapping[str, Value], device: Hardware) -> RowTerms | None:
    """``row_terms("linear", "bf16", {"m": 8, "n": 4096, "k": 4096}, device)``; None for a kind that has no shape."""
    if kind == "linear":
        return _product_terms(dtype, sizes, device)
    if kind == "moe":
        return _mixture_terms(dtype, sizes, device)
    if kind in ("decode_attention", "prefill_attention"):
        return _attention_terms(kind, sizes, device)
    if kind in _STATES:
        return _state_terms(kind, dtype, sizes, device)
    if kind == "sampler":
        return _sampler_terms(sizes, device)
    return None


def _sampler_terms(sizes: Mapping[str, Value], device: Hardware) -> RowTerms:
    """Greedy sampling of m rows of n logits."""
    env = {"n": sizes["n"], "logits": sizes["m"], "act_bytes": 2}
    return RowTerms("bf16", {key: sizes[key] for key in "mn"}, _terms(_SAMPLER, env, device, _vector_flops(device)))


def _vector_flops(device: Hardware) -> float:
    return device.flops.get("fp32") or max(device.flops.values())


def _product_terms(dtype: str, sizes: Mapping[str, Value], device: Hardware) -> RowTerms:
    """A matrix product of m × k with n × k."""
    weight, inp, peak = _format(device, dtype)
    env = {**sizes, "tp": 1, "act_bytes": 2, "mlp_weight_bytes": weight, "mlp_input_bytes": inp}
    return RowTerms(dtype, {key: sizes[key] for key in "mnk"}, _terms(_PRODUCT, env, device, peak))


def _attention_terms(kind: str, sizes: Mapping[str, Value], device: Hardware) -> RowTerms:
    """Attention of ``seqs`` equal sequences: ``new`` queries each (1 when decoding) over ``context`` positions."""
    phase = kind.partition("_")[0]
    seqs, context = sizes["seqs"], sizes["context"]
    new = sizes.get("new", 1)
    qk = sizes["head_dim"]
    v = sizes.get("v_dim", qk)
    cache = sizes.get("kv_dtype", "bf16")
    context = minimum_of(context, sizes["window"] + new - 1) if "window" in sizes else context
    pairs = seqs * (new * (context - new) + new * (new + 1) / 2)
    dims = {
        "seqs": seqs,
        "heads": sizes["heads"],
        "kv_heads": sizes["kv_heads"],
        "qk_dim": qk,
        "v_dim": v,
        "tokens": seqs * new,
        "kv": seqs * context,
        "pairs": pairs,
        "uniform_lengths": 1.0,
    }
    env = {
        **dims,
        "kv_width": qk if qk == _MLA_LATENT else sizes["kv_heads"] * (qk + v),
        "act_bytes": 2,
        "eager": 0,
        "dcp": 1,
        "kv_bytes": catalog.precision(cache).bits / 8,
        f"{phase}_tokens": seqs * new,
        f"{phase}_seqs": seqs,
        f"{phase}_kv": seqs * context,
        f"{phase}_qk": pairs,
        f"{phase}_dense": seqs * new * context,
    }
    table_key = head_label(qk, v) + ("-fp8" if cache == "fp8" else "")
    return RowTerms(table_key, dims, _terms(_HEADS[phase], env, device, _format(device, "bf16")[2]))


def _state_terms(kind: str, dtype: str, sizes: Mapping[str, Value], device: Hardware) -> RowTerms:
    """Mamba-2 of ``seqs`` sequences with states in ``dtype``: their prompts of ``m`` tokens in all, or a token each."""
    op, phase = _STATES[kind], "prefill" if kind == "chunk_scan" else "decode"
    seqs = sizes["seqs"]
    tokens = sizes.get("m", seqs)
    env = {
        **sizes,
        "prefill_tokens": 0,
        f"{phase}_seqs": seqs,
        f"{phase}_tokens": tokens,
        "tokens": tokens,
        "act_bytes": 2,
    }
    env["state_bytes"] = catalog.precision(dtype).bits / 8
    peak = _format(device, "bf16")[2] if op.peak == "attention_peak_flops" else _vector_flops(device)
    dims = {key: evaluate(value, env) for key, value in op.dims.items()}
    return RowTerms(dtype, dims, _terms(op, {**env, "norm_bytes": 2}, device, peak))


def head_label(qk: float, v: float) -> str:
    """The name of a head's sizes: ``head_label(128, 128)  # '128'``, ``head_label(192, 128)  # '192x128'``"""
    return f"{qk:g}" if qk == v else f"{qk:g}x{v:g}"


def _mixture_terms(dtype: str, sizes: Mapping[str, Value], device: Hardware) -> RowTerms:
    """Routed experts of one rank, chosen at random; with ``even`` every expert has its share and none is left out."""
    ep = sizes.get("ep", 1)
    weight, inp, peak = _format(device, dtype)
    env = {
        "hidden": sizes["hidden"],
        "inner": sizes["inner"],
        "count": sizes["experts"] * ep,
        "top_k": sizes["top_k"],
        "moe_tokens": sizes["tokens"],
        "ep": ep,
        "moe_tp": 1,
        "ep_spread": 0,  # rows are of one rank, with no other to wait for
        "routing_skew": sizes.get("skew", 0.0),
        "act_bytes": 2,
        "experts_weight_bytes": weight,
        "experts_input_bytes": inp,
    }
    dims = {key: evaluate(value, env) for key, value in _EXPERTS.dims.items()}
    terms = _terms(_EXPERTS, env, device, peak)
    if sizes.get("even"):
        untouched = minimum_of(dims["experts"], maximum_of(dims["rows"], 1.0)) - dims["touched"]
        weight_bytes = untouched * 3 * sizes["hidden"] * sizes["inner"] * weight
        terms = terms._replace(memory=terms.memory + weight_bytes / device.memory_bandwidth)
    return RowTerms(dtype, dims, terms)


def _format(device: Hardware, dtype: str) -> tuple[float, float, float]:
    """Bytes of a weight and of an input element, and the FLOP/s, of a number format on a device."""
    number = catalog.precision(dtype)
    runs = precision.peak_format(device, number, "bf16")
    native = bool(number.compute) and runs == number.compute[0]
    return number.bytes, min(2.0, number.activation_bits / 8) if native else 2.0, device.flops[runs]


def _terms(op: Op, env: Mapping[str, Value], device: Hardware, peak: float) -> Terms:
    w = op.work
    moved = sum(evaluate(x, env) for x in (w.weights, w.reads, w.writes, w.kv_reads, w.kv_writes))
    return Terms(evaluate(w.flops, env) / peak, moved / device.memory_bandwidth, 0.0, 0.0)
