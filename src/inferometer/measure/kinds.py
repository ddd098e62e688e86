"""The rows of a kernel profile: which kinds of kernel there are, and which sizes make the shape of each.

A shape is one cell, ``m=8 n=4096 k=4096``, its keys always in this order. A key with a default is written only where it
differs from it. What must not be used carries a flag, the text after `` !`` in the row's source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

HEAD = ("kind", "dtype", "shape", "seconds", "source")
KEYS: dict[str, tuple[str, ...]] = {
    "linear": ("m", "n", "k"),
    "prefill_attention": ("seqs", "heads", "kv_heads", "head_dim", "new", "context", "window", "kv_dtype"),
    "decode_attention": ("seqs", "heads", "kv_heads", "head_dim", "context", "window", "kv_dtype"),
    "mixed_attention": ("new", "cached", "seqs", "context", "heads", "kv_heads", "head_dim", "kv_dtype"),
    "mla_prefill": ("seqs", "heads", "new", "context", "qk_dim", "v_dim", "kv_dtype"),
    "mla_decode": ("seqs", "heads", "context", "kv_rank", "rope_dim", "kv_dtype"),
    "moe": ("tokens", "hidden", "inner", "experts", "top_k", "skew", "ep"),
    "norm": ("m", "n"),
    "activation": ("m", "n"),
    "rope": ("m", "heads", "kv_heads", "head_dim"),
    "kv_write": ("m", "kv_heads", "head_dim", "kv_dtype"),
    "embedding": ("m", "n", "rows"),
    "sampler": ("m", "n"),
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
DEFAULTS: dict[str, Any] = {"window": 0, "kv_dtype": "", "skew": 0.0, "ep": 1, "block": 0, "library": ""}
MARK = " !"  # what separates a source from its flags


def shapes(kind: str, dims: Mapping[str, Sequence[Any]]) -> list[str]:
    """The cells of many rows: ``shapes("norm", {"m": [1, 8], "n": [64, 64]})  # ["m=1 n=64", "m=8 n=64"]``"""
    parts = [_pieces(key, dims[key]) for key in KEYS[kind] if key in dims]
    return ["".join(row)[1:] for row in zip(*parts, strict=True)]


def _pieces(key: str, values: Iterable[Any]) -> list[str]:
    nothing = DEFAULTS.get(key)
    return ["" if value == nothing else f" {key}={value:g}" if key == "skew" else f" {key}={value}" for value in values]


def unflagged(source: str) -> str:
    """A source without its flags: ``unflagged("vllm 0.24.0 !floor")  # "vllm 0.24.0"``"""
    return source.partition(MARK)[0]
