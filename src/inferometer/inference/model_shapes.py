"""Kernel shapes of one model, as one of ``tp`` ranks runs it: what a table by model leaves out."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from ..base.symbols import evaluate
from ..network import families
from ..specs import catalog
from .weights import ALONE


class AttentionShape(NamedTuple):
    """Attention of one rank."""

    heads: int
    kv_heads: int
    head_dim: int


class ExpertShape(NamedTuple):
    """Routed experts; ``inner`` is one rank's."""

    hidden: int
    inner: int
    experts: int
    top_k: int


class ModelShapes(NamedTuple):
    """A model cut for some ranks. What differs from layer to layer has no size that a table by model could mean."""

    name: str
    dtype: str
    hidden: int
    vocab: int
    products: dict[str, tuple[int, int]]  # operator -> (n, k)
    activation: int  # columns that the MLP's gated activation reads; 0 if it has none
    attention: AttentionShape | None
    experts: ExpertShape | None


@functools.cache
def model_shapes(name: str, tp: int = 1) -> ModelShapes | None:
    """``network("meta-llama/Llama-3.1-8B").products["o_proj"]  # (4096, 4096)``; None if it is not in the catalogue."""
    entry = catalog.catalog_entry(name)
    return None if entry is None else shapes_of(entry.name, entry.config, tp)


def shapes_of(name: str, config: dict[str, Any], tp: int = 1) -> ModelShapes:
    """The same of a config: ``shapes_of("tiny", {"model_type": "llama", "hidden_size": 64, …}).hidden  # 64``"""
    model = families.build(config)
    sizes: dict[tuple[str, str], set[tuple[int, ...]]] = {}
    for block in model.blocks:
        env = {**ALONE, **block.dims, "tp": tp, "moe_tp": tp}
        for op in block.ops if block.stage != "vision" else ():
            keys = _SIZES.get(op.kind, {}).get(op.name) or _SIZES.get(op.kind, {}).get("")
            if keys:
                sizes.setdefault((op.kind, op.name), set()).add(tuple(_whole(op.dims[key], env) for key in keys))

    def only(kind: str, op: str) -> tuple[int, ...] | None:
        distinct = sizes.get((kind, op), set())
        return next(iter(distinct)) if len(distinct) == 1 else None

    products = {op: only(kind, op) for kind, op in sizes if kind == "linear"}
    plain = {op: (size[0], size[1]) for op, size in products.items() if size and size[2] == 1}
    heads, experts, gated = only("decode_attention", "attention"), only("moe", "experts"), "gate_up_proj" in plain
    full = all(span.kind == "full" and span.ratio == 1 for span in model.spans.values())
    width = only("elementwise", "act_fn")
    return ModelShapes(
        name,
        model.dtype,
        round(model.sizes["hidden_size"]),
        round(model.sizes.get("vocab_size", 0)),  # none that makes images
        plain,
        width[0] if width and gated else 0,
        AttentionShape(*heads[:3]) if heads and full and heads[2] == heads[3] else None,
        ExpertShape(*experts[:4]) if experts and experts[4] == 3 else None,
    )


_SIZES: dict[str, dict[str, tuple[str, ...]]] = {
    "linear": {"": ("n", "k", "groups")},
    "decode_attention": {"attention": ("heads", "kv_heads", "qk_dim", "v_dim")},
    "moe": {"experts": ("hidden", "inner", "experts", "top_k", "matrices")},
    "elementwise": {"act_fn": ("n",)},
}


def _whole(value: Any, env: dict[str, Any]) -> int:
    return round(float(evaluate(value, env)))
