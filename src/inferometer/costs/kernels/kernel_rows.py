"""Measured rows as figures: kind, format and sizes become the shape and the roofline terms that operators have.

The words are those of the profile file (``m=8 n=4096 k=4096``); formulas are the operators' own, floats or arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ...base.symbols import Value, evaluate, minimum_of, maximum_of
from ...base.symbols import names as s
from ...network.operators import Op, attention, experts, linear
from ...specs import catalog
from ...specs.structs import Hardware
from .. import precision
from .source import Terms

_PRODUCT = linear("product", s.k, s.n, m=s.m)
_EXPERTS = experts("experts", s.hidden, s.inner, count=s.count, top_k=s.top_k)
_HEADS = {
    phase: attention(
        "attention", phase, heads=s.heads, kv_heads=s.kv_heads, qk_dim=s.qk_dim, v_dim=s.v_dim, kv_width=s.kv_width
    )
    for phase in ("prefill", "decode")
}


class Figures(NamedTuple):
    """A row as predictions see it."""

    sheet: str
    dims: dict[str, Value]
    terms: Terms


def figures(kind: str, number: str, sizes: Mapping[str, Value], device: Hardware) -> Figures | None:
    """``figures("linear", "bf16", {"m": 8, "n": 4096, "k": 4096}, device)``; None for a kind that has no shape."""
    if kind == "linear":
        return product(number, sizes, device)
    if kind == "moe":
        return mixture(number, sizes, device)
    if kind in ("decode_attention", "prefill_attention"):
        return heads(kind, sizes, device)
    return None


def product(number: str, sizes: Mapping[str, Value], device: Hardware) -> Figures:
    """A matrix product of m × k with n × k."""
    weight, inp, peak = _format(device, number)
    env = {**sizes, "tp": 1, "act_bytes": 2, "mlp_weight_bytes": weight, "mlp_input_bytes": inp}
    return Figures(number, {key: sizes[key] for key in "mnk"}, _terms(_PRODUCT, env, device, peak))


def heads(kind: str, sizes: Mapping[str, Value], device: Hardware) -> Figures:
    """Attention of ``seqs`` sequences alike: ``new`` queries each (1 when decoding) over ``context`` positions."""
    phase = kind.partition("_")[0]
    seqs, context = sizes["seqs"], sizes["context"]
    new = sizes.get("new", 1)
    qk = sizes["head_dim"]
    v = sizes.get("v_dim", qk)
    cache = sizes.get("kv_dtype", "bf16")
    context = minimum_of(context, sizes["window"] + new - 1) if "window" in sizes else context
    pairs = seqs * (new * (context - new) + new * (new + 1) / 2)
    latent = qk == 576  # keys and values are one latent: it is read once
    dims = {
        "seqs": seqs,
        "heads": sizes["heads"],
        "kv_heads": sizes["kv_heads"],
        "qk_dim": qk,
        "v_dim": v,
        "tokens": seqs * new,
        "kv": seqs * context,
        "pairs": pairs,
        "alike": 1.0,
    }
    env = {
        **dims,
        "kv_width": qk if latent else sizes["kv_heads"] * (qk + v),
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
    label = head_label(qk, v) + ("-fp8" if cache == "fp8" else "")
    return Figures(label, dims, _terms(_HEADS[phase], env, device, device.flops["bf16"]))


def head_label(qk: float, v: float) -> str:
    """The name of a head's sizes: ``head_label(128, 128)  # '128'``, ``head_label(192, 128)  # '192x128'``"""
    return f"{qk:g}" if qk == v else f"{qk:g}x{v:g}"


def mixture(number: str, sizes: Mapping[str, Value], device: Hardware) -> Figures:
    """Routed experts of one rank, chosen at random; with ``even`` every expert has its share and none is left out."""
    ep = sizes.get("ep", 1)
    weight, inp, peak = _format(device, number)
    env = {
        "hidden": sizes["hidden"],
        "inner": sizes["inner"],
        "count": sizes["experts"] * ep,
        "top_k": sizes["top_k"],
        "moe_tokens": sizes["tokens"],
        "ep": ep,
        "moe_tp": 1,
        "routing_skew": sizes.get("skew", 0.0),
        "act_bytes": 2,
        "experts_weight_bytes": weight,
        "experts_input_bytes": inp,
    }
    dims = {key: evaluate(value, env) for key, value in _EXPERTS.dims.items()}
    terms = _terms(_EXPERTS, env, device, peak)
    if sizes.get("even"):
        more = minimum_of(dims["experts"], maximum_of(dims["rows"], 1.0)) - dims["touched"]
        moved = more * 3 * sizes["hidden"] * sizes["inner"] * weight
        terms = terms._replace(memory=terms.memory + moved / device.memory_bandwidth)
    return Figures(number, dims, terms)


def _format(device: Hardware, word: str) -> tuple[float, float, float]:
    """Bytes of a weight and of an input element, and the FLOP/s, of a number format on a device."""
    wanted = catalog.precision(word)
    runs = precision.peak_format(device, wanted, "bf16")
    native = bool(wanted.compute) and runs == wanted.compute[0]
    return wanted.bytes, min(2.0, wanted.activation_bits / 8) if native else 2.0, device.flops[runs]


def _terms(op: Op, env: Mapping[str, Value], device: Hardware, peak: float) -> Terms:
    w = op.work
    moved = sum(evaluate(x, env) for x in (w.weights, w.reads, w.writes, w.kv_reads, w.kv_writes))
    return Terms(evaluate(w.flops, env) / peak, moved / device.memory_bandwidth, 0.0, 0.0)
