"""Sizes that the catalogue's common models are made of, alone and split over 2, 4 and 8 GPUs."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

from ..base.symbols import evaluate
from ..inference.memory import ALONE
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


class Found(NamedTuple):
    """Sizes that the common models have, unsplit ones first; keys of dicts, so that each is there once."""

    products: dict[tuple[int, int], None]  # n, k
    heads: dict[tuple[int, int, int], None]  # heads, KV heads, head dimension
    windows: dict[tuple[int, int, int, int], None]  # the same, and the window
    latents: dict[tuple[int, int, int, int, int], None]  # heads, rank, nope, rope, value dimension
    mixtures: dict[tuple[int, int, int, int], None]  # hidden, inner, experts, top_k


@functools.cache
def found() -> Found:
    """What the catalogue's common models are made of."""
    all_sizes = Found({}, {}, {}, {}, {})
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


def _sort(into: Found, op: Any, env: dict[str, Any], window: int) -> None:
    def size(*words: str) -> tuple[int, ...]:
        return tuple(round(float(evaluate(op.dims[word], env))) for word in words)

    if op.kind == "linear" and op.role in ("attn", "mlp", "shared", "head", "router") and op.dims["groups"] == 1:
        n, k = size("n", "k")
        if n >= 64 and k >= 64:
            into.products[n, k] = None
    elif op.kind == "decode_attention" and op.name == "attention":
        heads, kv, dim = size("heads", "kv_heads", "qk_dim")
        if "kv_lora_rank" in env:
            rank, nope, rope, v = (
                round(env[word]) for word in ("kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
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
    return list(found().products)


def heads() -> list[tuple[int, int, int]]:
    """(heads, KV heads, head dimension) of one device; after the commonest, one of each other dimension."""
    first: dict[int, tuple[int, int, int]] = {}
    for shape in found().heads:
        first.setdefault(shape[2], shape)
    return list(dict.fromkeys([*list(found().heads)[:2], *first.values(), *found().heads]))


def windows() -> list[tuple[int, int, int, int]]:
    """(heads, KV heads, head dimension, window); one of each window first."""
    first: dict[int, tuple[int, int, int, int]] = {}
    for shape in found().windows:
        first.setdefault(shape[3], shape)
    return list(dict.fromkeys([*first.values(), *found().windows]))


def latents() -> list[tuple[int, int, int, int, int]]:
    """(heads, rank, nope, rope, value dimension) of latent attention."""
    return list(found().latents)


def mixtures() -> list[tuple[int, int, int, int]]:
    """(hidden, inner, experts, top_k) of routed experts."""
    return list(found().mixtures)


# ------------------------------------------------------------------ grid
# Which shapes are worth measuring: those of the catalogue's common models, at batches and contexts that engines see.
#
# Each kind of kernel is a list, most telling shapes first. The lists are taken in turns, a few rows of each and then
# twice as many each time, so that a short budget already spans all kinds and a long one finishes them all.


Row = dict[str, Any]
Heads = tuple[int, int, int, int]  # heads, KV heads, head dimension, window (0 = none)
A = TypeVar("A")
B = TypeVar("B")

ROWS = (1, 8, 64, 512, 4096, 2, 4, 16, 32, 128, 256, 1024, 2048, 8192, 24, 48, 96, 192, 384, 768, 1536)
TOKENS = (1, 8, 64, 512, 4096, 2, 4, 16, 32, 128, 256, 1024, 2048, 8192, 24, 48, 96, 192, 384)
COARSE = 5  # of those, what a thing is first measured at
CONTEXTS = (1024, 128, 4096, 512, 2048, 8192, 256, 16384, 32768)
DECODES = tuple(product(CONTEXTS, (1, 8, 64, 256, 2, 4, 16, 32, 128, 512)))  # context, sequences
PROMPTS = (
    *(
        (seqs, new, new)
        for new, seqs in product((1024, 128, 4096, 512, 2048, 8192, 256, 64, 16384), (1, 4, 16, 64, 2, 8, 32))
        if seqs * new <= 16384
    ),
    *(
        (1, new, context)
        for new, context in ((512, 4096), (2048, 8192), (8192, 16384), (8192, 32768), (1024, 16384), (256, 2048))
    ),
)  # sequences, new tokens, context
MIXES = tuple(
    (*piece, *others)
    for piece, others in product(
        ((2048, 0), (512, 0), (512, 4096), (2048, 8192), (128, 1024), (8192, 0), (256, 0), (1024, 16384)),
        ((64, 1024), (8, 1024), (64, 4096), (256, 1024), (16, 8192), (128, 2048)),
    )
)  # new and cached tokens of a prompt; decoding sequences and their context
RANKS = (2, 4, 8)
MOST_FLOPS = 2.6e12  # of one call: a few milliseconds at peak
MOST_CACHE = 20e9  # bytes of keys and values in one call
TURN = 8  # rows of each list in the first turn


def tiers(things: Sequence[A], points: Sequence[B], coarse: int = COARSE) -> Iterator[tuple[A, B]]:
    """A few things at a few points, then at all points, then more things: a short run already shows the whole range."""
    start = 0
    for stop in (4, 16, 64, len(things)):
        some = things[start:stop]
        yield from product(some, points[:coarse])
        yield from product(some, points[coarse:])
        start = max(start, stop)


def turns(lists: Sequence[Sequence[A]]) -> Iterator[A]:
    """A few of each list, then twice as many of each, until all are empty: ``turns([[1, 2], [3]])``"""
    start, share = 0, TURN
    while any(start < len(one) for one in lists):
        for one in lists:
            yield from one[start : start + share]
        start, share = start + share, 2 * share


# ------------------------------------------------------------------ products and experts


def linears(dtype: str, most: int, multiple: int = 1) -> Iterator[Row]:
    """Common weights at every number of rows; those whose sides are multiples of what a format wants."""
    weights = [(n, k) for n, k in products() if n % multiple == 0 and k % multiple == 0]
    for (n, k), m in tiers(weights[:most], ROWS):
        if 2.0 * m * n * k <= MOST_FLOPS:
            yield {"kind": "linear", "dtype": dtype, "m": m, "n": n, "k": k}


def expert_rows(dtype: str, most: int, multiple: int = 1, skew: float = 0.0) -> Iterator[Row]:
    """Routed experts of the common mixtures, whole and sliced."""
    shapes = [shape for shape in mixtures() if shape[0] % multiple == 0 and shape[1] % multiple == 0]
    for (hidden, inner, experts, top_k), tokens in tiers(shapes[:most], TOKENS):
        yield {
            "kind": "moe",
            "dtype": dtype,
            "tokens": tokens,
            "hidden": hidden,
            "inner": inner,
            "experts": experts,
            "top_k": top_k,
            **({"skew": skew} if skew else {}),
        }


def shared_out(dtype: str, most: int, multiple: int = 1) -> Iterator[Row]:
    """The experts of one rank, where all ranks together have a model's."""
    whole = [shape for shape in mixtures() if shape[1] % multiple == 0 and shape[2] % 8 == 0]
    for ((hidden, inner, experts, top_k), ep), tokens in tiers(list(product(whole[:most], (8, 2, 4))), TOKENS):
        if tokens >= ep:
            yield {
                "kind": "moe",
                "dtype": dtype,
                "tokens": tokens,
                "hidden": hidden,
                "inner": inner,
                "experts": experts // ep,
                "top_k": top_k,
                "ep": ep,
            }


# ------------------------------------------------------------------ attention


def _fits(seqs: int, context: int, kv: int, dim: int) -> bool:
    return 4.0 * seqs * context * kv * dim <= MOST_CACHE


def _more(window: int, kv_dtype: str) -> Row:
    """What a shape says only where it is not the usual."""
    return ({"window": window} if window else {}) | ({"kv_dtype": kv_dtype} if kv_dtype else {})


def decodes(heads: Sequence[Heads], kv_dtype: str = "") -> Iterator[Row]:
    """Decode attention over batches and contexts; with a window over contexts that are longer."""
    for (h, kv, d, window), (context, seqs) in tiers(heads, DECODES, 12):
        if _fits(seqs, context, kv, d) and window < context:
            yield {
                "kind": "decode_attention",
                "dtype": "bf16",
                "seqs": seqs,
                "heads": h,
                "kv_heads": kv,
                "head_dim": d,
                "context": context,
                **_more(window, kv_dtype),
            }


def prefills(heads: Sequence[Heads], kv_dtype: str = "") -> Iterator[Row]:
    """Prefill attention: whole prompts of many lengths, and chunks after a cached part."""
    for (h, kv, d, window), (seqs, new, context) in tiers(heads, PROMPTS, 12):
        if window < context:
            yield {
                "kind": "prefill_attention",
                "dtype": "bf16",
                "seqs": seqs,
                "heads": h,
                "kv_heads": kv,
                "head_dim": d,
                "new": new,
                "context": context,
                **_more(window, kv_dtype),
            }


def mixes(heads: Sequence[Heads]) -> Iterator[Row]:
    """A piece of a prompt together with decoding sequences."""
    for (h, kv, d, _), (new, cached, seqs, context) in tiers(heads, MIXES, 8):
        if _fits(seqs, context, kv, d):
            yield {
                "kind": "mixed_attention",
                "dtype": "bf16",
                "new": new,
                "cached": cached,
                "seqs": seqs,
                "context": context,
                "heads": h,
                "kv_heads": kv,
                "head_dim": d,
            }


def latent_prompts() -> Iterator[Row]:
    """Prompts of latent attention, expanded."""
    shapes = list(dict.fromkeys((h, nope + rope, v) for h, _, nope, rope, v in latents()))
    for (h, qk, v), (seqs, new, context) in tiers(shapes, PROMPTS, 12):
        if 2.0 * seqs * context * h * (qk + v) <= MOST_CACHE:
            yield {
                "kind": "mla_prefill",
                "dtype": "bf16",
                "seqs": seqs,
                "heads": h,
                "new": new,
                "context": context,
                "qk_dim": qk,
                "v_dim": v,
            }


def latent_decodes(kv_dtype: str = "") -> Iterator[Row]:
    """Decoding over latents."""
    shapes = list(dict.fromkeys((h, rank, rope) for h, rank, _, rope, _ in latents()))
    for (h, rank, rope), (context, seqs) in tiers(shapes, DECODES, 12):
        if 2.0 * seqs * context * (rank + rope) <= MOST_CACHE:
            yield {
                "kind": "mla_decode",
                "dtype": "bf16",
                "seqs": seqs,
                "heads": h,
                "context": context,
                "kv_rank": rank,
                "rope_dim": rope,
                **_more(0, kv_dtype),
            }


# ------------------------------------------------------------------ the rest


def widths(kind: str, dtype: str, wide: Sequence[int], points: Sequence[int] = ROWS, **more: Any) -> Iterator[Row]:
    """m rows of n columns."""
    for n, m in tiers(wide, points):
        yield {"kind": kind, "dtype": dtype, "m": m, "n": n, **more}


def turned(heads: Sequence[Heads]) -> Iterator[Row]:
    """Rope of queries and keys."""
    for (h, kv, d, _), m in tiers(heads, ROWS):
        yield {"kind": "rope", "dtype": "bf16", "m": m, "heads": h, "kv_heads": kv, "head_dim": d}


def written(heads: Sequence[Heads]) -> Iterator[Row]:
    """Keys and values into the cache."""
    for (kv, d), m in tiers(list(dict.fromkeys((kv, d) for _, kv, d, _ in heads)), ROWS):
        yield {"kind": "kv_write", "dtype": "bf16", "m": m, "kv_heads": kv, "head_dim": d}


def counted(kind: str, key: str, numbers: Iterable[int]) -> Iterator[Row]:
    """Kinds of one size: copies, launches."""
    for number in numbers:
        yield {"kind": kind, "dtype": "bf16", key: number}


def talks(ranks: Sequence[int], library: str) -> Iterator[Row]:
    """Collectives over message sizes; a CPU's are small ones, to try it out."""
    size = [1 << p for p in ((12, 18, 24, 14, 16, 20, 22, 26, 28, 10) if not library else (12, 16, 20))]
    for n, (bytes_, kind) in product(
        ranks, product(size, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    ):
        yield {"kind": kind, "dtype": "bf16", "bytes": bytes_, "ranks": n, **({"library": library} if library else {})}


def everything(ranks: Sequence[int] = RANKS, library: str = "") -> list[Row]:
    """All shapes, in the order in which they are worth measuring; collectives over groups of so many ``ranks``."""
    plain = [(*shape, 0) for shape in heads()]
    windowed = windows()[:12]
    hidden, inner = (4096, 2048, 8192, 5120, 7168, 1024), (28672, 6144, 57344, 22016, 12288, 1536)
    vocabularies, some = (128256, 32000, 151936), (1, 8, 64, 256, 16, 32, 128, 512)
    lists = (
        counted("launch", "kernels", (64, 256, 16)),
        counted("graph_replay", "kernels", (64, 256, 1024, 16, 1)),
        counted("copy", "bytes", (1 << p for p in (28, 20, 12, 24, 16, 32, 14, 18, 22, 26, 30))),
        linears("bf16", 10**6),
        decodes(plain[:24]),
        prefills(plain[:24]),
        expert_rows("bf16", 10**6),
        linears("fp8", 48, 16),
        mixes(plain[:8]),
        latent_decodes(),
        latent_prompts(),
        linears("fp8-block", 40, 128),
        linears("int8", 32, 16),
        linears("w4a16", 40, 128),
        linears("w8a16", 16, 128),
        expert_rows("fp8", 24, 16),
        expert_rows("fp8-block", 24, 128),
        expert_rows("bf16", 6, skew=1.0),
        expert_rows("bf16", 3, skew=0.5),
        shared_out("bf16", 3),
        decodes(windowed),
        prefills(windowed),
        decodes(plain[:8], "fp8"),
        prefills(plain[:4], "fp8"),
        latent_decodes("fp8"),
        widths("norm", "bf16", hidden),
        widths("activation", "bf16", inner),
        turned(plain[:12]),
        written(plain[:12]),
        (row for n in vocabularies for row in widths("embedding", "bf16", hidden[:3], some, rows=n)),
        widths("sampler", "bf16", vocabularies, some),
        widths("quantize", "fp8", hidden),
        widths("quantize", "fp8", hidden[:3], block=128),
        widths("quantize", "int8", hidden[:3]),
        talks(ranks, library),
    )
    rows = turns([list(one) for one in lists])
    return list({tuple(row.items()): row for row in rows}.values())
