"""Which shapes are worth measuring: those of the catalogue's common models, alone and split over 2, 4 and 8 GPUs.

Most telling first, so that a short budget already covers the ground.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .. import catalog, models
from ..memory import ALONE
from ..symbols import evaluate

COMMON = (
    "llama-3.1-8b", "qwen3-8b", "qwen3-0.6b", "qwen3-30b-a3b", "llama-2-7b", "mixtral-8x7b-v0.1",
    "mistral-7b-v0.3", "qwen2.5-7b", "deepseek-v2-lite", "llama-3.1-70b", "qwen3-32b", "qwen3-14b", "gpt-oss-20b",
    "qwen3-4b", "qwen3-1.7b", "gemma-2-9b", "gemma-3-27b", "phi-4", "llama-2-13b", "qwen2.5-32b", "qwen2.5-14b",
    "gpt-oss-120b", "llama-3.2-1b", "llama-3.2-3b", "qwen3-235b-a22b", "qwen3-next-80b-a3b", "deepseek-v3",
    "mistral-nemo-2407", "mistral-small-24b-2501", "yi-34b", "codellama-34b", "gemma-2-27b", "gemma-2-2b",
    "qwen2.5-1.5b", "qwen2.5-3b", "phi-3-mini-4k", "llama-4-scout-17b-16e", "minimax-m2.5", "glm-4-9b", "opt-6.7b",
)  # fmt: skip
ROWS = (1, 8, 64, 512, 4096, 2, 4, 16, 32, 128, 256, 1024, 2048, 8192, 24, 48, 96, 192, 384, 768, 1536)
TOKENS = (1, 8, 64, 512, 4096, 2, 4, 16, 32, 128, 256, 1024, 2048, 8192, 24, 48, 96, 192, 384)
PARTS = (1, 2, 4, 8)


def _ops(name: str, tp: int) -> Iterator[tuple[Any, dict[str, Any]]]:
    model = models.build(catalog.model(name).config)
    for block in model.blocks:
        if block.stage == "vision":
            continue
        heads = block.dims.get("num_attention_heads", tp)
        if heads % tp:
            continue
        env = {**ALONE, **block.dims, "tp": tp, "moe_tp": tp}
        for op in block.ops:
            yield op, env


def _whole(value: Any, env: dict[str, Any]) -> int:
    return round(float(evaluate(value, env)))


def products() -> list[tuple[int, int]]:
    """Weights (n, k) of linear operators, unsplit ones first."""
    found: dict[tuple[int, int], None] = {}
    for tp in PARTS:
        for name in COMMON:
            for op, env in _ops(name, tp):
                if (
                    op.kind == "linear"
                    and op.dims["groups"] == 1
                    and op.role in ("attn", "mlp", "shared", "head", "router")
                ):
                    n, k = _whole(op.dims["n"], env), _whole(op.dims["k"], env)
                    if n >= 64 and k >= 64:
                        found[(n, k)] = None
    return list(found)


def linears(dtype: str, most: int) -> Iterator[dict[str, Any]]:
    """Every common weight at every number of rows, weight by weight."""
    for n, k in products()[:most]:
        if dtype == "fp8" and (n % 16 or k % 16):
            continue
        for m in ROWS:
            if m * n * k <= 1.3e12:
                yield {"kind": "linear", "dtype": dtype, "m": m, "n": n, "k": k}


def heads() -> list[tuple[int, int, int]]:
    """(heads, KV heads, head dimension) of one device."""
    found: dict[tuple[int, int, int], None] = {}
    for tp in PARTS:
        for name in COMMON:
            for op, env in _ops(name, tp):
                if op.kind == "decode_attention" and op.name == "attention" and "kv_lora_rank" not in env:
                    h, kv, d = (_whole(op.dims[w], env) for w in ("heads", "kv_heads", "qk_dim"))
                    if d in (64, 96, 128, 256) and h % kv == 0:
                        found[(h, kv, d)] = None
    return list(found)


def decodes(most: int) -> Iterator[dict[str, Any]]:
    """Decode attention over batches and contexts."""
    for h, kv, d in heads()[:most]:
        for context in (1024, 128, 4096, 512, 2048, 8192, 256, 16384, 32768):
            for seqs in (1, 8, 64, 256, 2, 4, 16, 32, 128, 512):
                if seqs * context * kv * d * 4 <= 20e9:
                    yield {"kind": "decode_attention", "dtype": "bf16", "seqs": seqs, "heads": h, "kv_heads": kv,
                           "head_dim": d, "context": context}  # fmt: skip


def prefills(most: int) -> Iterator[dict[str, Any]]:
    """Prefill attention: whole prompts of many lengths, and chunks after a cached part."""
    for h, kv, d in heads()[:most]:
        for new in (1024, 128, 4096, 512, 2048, 8192, 256, 64, 16384):
            for seqs in (1, 4, 16, 64, 2, 8, 32):
                if seqs * new <= 16384:
                    yield {"kind": "prefill_attention", "dtype": "bf16", "seqs": seqs, "heads": h, "kv_heads": kv,
                           "head_dim": d, "new": new, "context": new}  # fmt: skip
        for new, context in ((512, 4096), (2048, 8192), (8192, 16384), (8192, 32768), (1024, 16384), (256, 2048)):
            yield {"kind": "prefill_attention", "dtype": "bf16", "seqs": 1, "heads": h, "kv_heads": kv, "head_dim": d,
                   "new": new, "context": context}  # fmt: skip


def mixtures() -> Iterator[dict[str, Any]]:
    """Routed experts of the common mixtures, whole and sliced."""
    found: dict[tuple[int, int, int, int], None] = {}
    for tp in PARTS:
        for name in COMMON:
            for op, env in _ops(name, tp):
                if op.kind == "moe" and evaluate(op.dims["matrices"], env) == 3:
                    sizes = tuple(_whole(op.dims[w], env) for w in ("hidden", "inner", "experts", "top_k"))
                    found[sizes] = None  # type: ignore[index]
    for hidden, inner, experts, top_k in found:
        if experts * hidden * inner * 6 > 60e9 or inner % 16:
            continue
        for tokens in TOKENS:
            yield {"kind": "moe", "dtype": "bf16", "tokens": tokens, "hidden": hidden, "inner": inner,
                   "experts": experts, "top_k": top_k}  # fmt: skip


def small() -> Iterator[dict[str, Any]]:
    """Norms, activations, quantisation, sampling and copies."""
    for size in (1 << p for p in range(12, 33, 2)):
        yield {"kind": "copy", "dtype": "bf16", "bytes": size}
    for width in (4096, 2048, 1024, 8192, 5120, 7168):
        for m in ROWS:
            yield {"kind": "norm", "dtype": "bf16", "m": m, "n": width}
            yield {"kind": "quantize", "dtype": "fp8", "m": m, "n": width}
    for width in (28672, 6144, 22016, 12288, 57344, 1536):
        for m in ROWS:
            yield {"kind": "activation", "dtype": "bf16", "m": m, "n": width}
    for vocab in (128256, 32000, 151936):
        for m in (1, 8, 64, 256, 16, 32, 128, 512):
            yield {"kind": "sampler", "dtype": "bf16", "m": m, "n": vocab}


def everything() -> list[dict[str, Any]]:
    """All shapes in order of worth: the usual models' unsplit products, attention, experts, small kernels, the rest."""
    rows: list[dict[str, Any]] = []
    for part in (small(), linears("bf16", 60), decodes(6), prefills(6), mixtures(), linears("fp8", 40), decodes(14),
                 prefills(14), linears("bf16", 10**6)):  # fmt: skip
        rows += part
    return list({tuple(r.items()): r for r in rows}.values())
