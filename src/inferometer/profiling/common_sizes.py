"""Kernel sizes of the catalogue's common models, whole and split over ranks: a measuring campaign begins with them."""

from __future__ import annotations

import functools
from itertools import product
from typing import Any, NamedTuple

from ..base.symbols import evaluate
from ..inference.weights import ALONE
from ..network import families
from ..specs import catalog

COMMON = (
    "llama-3.1-8b",
    "qwen3-8b",
    "qwen3-0.6b",
    "qwen3-30b-a3b",
    "llama-2-7b",
    "mixtral-8x7b-v0.1",
    "mistral-7b-v0.3",
    "qwen2.5-7b",
    "deepseek-v2-lite",
    "llama-3.1-70b",
    "qwen3-32b",
    "qwen3-14b",
    "gpt-oss-20b",
    "qwen3-4b",
    "qwen3-1.7b",
    "gemma-2-9b",
    "gemma-3-27b",
    "phi-4",
    "llama-2-13b",
    "qwen2.5-32b",
    "qwen2.5-14b",
    "gpt-oss-120b",
    "llama-3.2-1b",
    "llama-3.2-3b",
    "qwen3-235b-a22b",
    "qwen3-next-80b-a3b",
    "deepseek-v3",
    "mistral-nemo-2407",
    "mistral-small-24b-2501",
    "yi-34b",
    "codellama-34b",
    "gemma-2-27b",
    "gemma-2-2b",
    "qwen2.5-1.5b",
    "qwen2.5-3b",
    "phi-3-mini-4k",
    "llama-4-scout-17b-16e",
    "minimax-m2.5",
    "glm-4-9b",
    "opt-6.7b",
    "kimi-k2",
    "phi-2",
    "gpt-neox-20b",
    "gemma-7b",
    "mimo-v2-flash",
    "mistral-7b-v0.1",
    "gemma-3-1b",
)
PARTS = (1, 2, 4, 8)
DIMS = (64, 80, 96, 128, 192, 256)  # of heads that libraries have kernels for
MOST_EXPERTS = 60e9  # bytes of experts in bf16 that fit on one device


class CommonSizes(NamedTuple):
    """Sizes that the common models have, unsplit ones first; keys of dicts, so that each is there once."""

    products: dict[tuple[int, int], None]  # n, k
    heads: dict[tuple[int, int, int], None]  # heads, KV heads, head dimension
    windows: dict[tuple[int, int, int, int], None]  # the same, and the window
    latents: dict[tuple[int, int, int, int, int], None]  # heads, rank, nope, rope, value dimension
    mixtures: dict[tuple[int, int, int, int], None]  # hidden, inner, experts, top_k


@functools.cache
def common_sizes() -> CommonSizes:
    """What the catalogue's common models are made of."""
    all_sizes = CommonSizes({}, {}, {}, {}, {})
    built = [families.build(catalog.model(name).config) for name in COMMON]
    for tp, model in product(PARTS, built):
        for block in model.blocks:
            if block.stage == "vision" or block.dims.get("num_attention_heads", tp) % tp:
                continue
            env = {**ALONE, **block.dims, "tp": tp, "moe_tp": tp}
            spans = [model.spans[op.cache.span] for op in block.ops if op.cache is not None and op.kind == "kv_write"]
            window = next((round(span.size) for span in spans if span.kind == "window"), 0)
            for op in block.ops:
                _sort(all_sizes, op, env, window)
    return all_sizes


def _sort(into: CommonSizes, op: Any, env: dict[str, Any], window: int) -> None:
    def size(*names: str) -> tuple[int, ...]:
        return tuple(round(float(evaluate(op.dims[name], env))) for name in names)

    if op.kind == "linear" and op.role in ("attn", "mlp", "shared", "head", "router") and op.dims["groups"] == 1:
        n, k = size("n", "k")
        if n >= 64 and k >= 64:
            into.products[n, k] = None
    elif op.kind == "decode_attention" and op.name == "attention":
        heads, kv, dim = size("heads", "kv_heads", "qk_dim")
        if "kv_lora_rank" in env:
            rank, nope, rope, v = (
                round(env[name]) for name in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
            )
            into.latents[heads, rank, nope, rope, v] = None
        elif dim in DIMS and heads % kv == 0:
            into.heads[heads, kv, dim] = None
            if window:
                into.windows[heads, kv, dim, window] = None
    elif op.kind == "moe" and evaluate(op.dims["matrices"], env) == 3:
        hidden, inner, experts, top_k = size("hidden", "inner", "experts", "top_k")
        if inner % 16 == 0 and experts * hidden * inner * 6 <= MOST_EXPERTS:
            into.mixtures[hidden, inner, experts, top_k] = None


def products() -> list[tuple[int, int]]:
    """Weights (n, k) of linear operators, unsplit ones first."""
    return list(common_sizes().products)


def heads() -> list[tuple[int, int, int]]:
    """(heads, KV heads, head dimension) of one device; after the commonest, one of each other dimension."""
    first: dict[int, tuple[int, int, int]] = {}
    for shape in common_sizes().heads:
        first.setdefault(shape[2], shape)
    return list(dict.fromkeys([*list(common_sizes().heads)[:2], *first.values(), *common_sizes().heads]))


def windows() -> list[tuple[int, int, int, int]]:
    """(heads, KV heads, head dimension, window); one of each window first."""
    first: dict[int, tuple[int, int, int, int]] = {}
    for shape in common_sizes().windows:
        first.setdefault(shape[3], shape)
    return list(dict.fromkeys([*first.values(), *common_sizes().windows]))


def latents() -> list[tuple[int, int, int, int, int]]:
    """(heads, rank, nope, rope, value dimension) of latent attention."""
    return list(common_sizes().latents)


def mixtures() -> list[tuple[int, int, int, int]]:
    """(hidden, inner, experts, top_k) of routed experts."""
    return list(common_sizes().mixtures)
