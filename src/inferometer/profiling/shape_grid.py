"""Which shapes are worth measuring: those of the catalogue's common models, at batches and contexts that engines see.

Each kind of kernel is a list, most telling shapes first. The lists are taken in turns, a few rows of each and then
twice as many each time, so that a short budget already spans all kinds and a long one finishes them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, TypeVar

from .model_shapes import heads, latents, mixtures, products, windows

ShapeRow = dict[str, Any]
HeadShape = tuple[int, int, int, int]  # heads, KV heads, head dimension, window (0 = none)
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


def linear_rows(dtype: str, most: int, multiple: int = 1) -> Iterator[ShapeRow]:
    """Common weights at every number of rows; those with sides in multiples of what a format wants."""
    weights = [(n, k) for n, k in products() if n % multiple == 0 and k % multiple == 0]
    for (n, k), m in tiers(weights[:most], ROWS):
        if 2.0 * m * n * k <= MOST_FLOPS:
            yield {"kind": "linear", "dtype": dtype, "m": m, "n": n, "k": k}


def expert_rows(dtype: str, most: int, multiple: int = 1, skew: float = 0.0) -> Iterator[ShapeRow]:
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


def expert_parallel_rows(dtype: str, most: int, multiple: int = 1) -> Iterator[ShapeRow]:
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


def _more(window: int, kv_dtype: str) -> ShapeRow:
    """What a shape says only where it is not the default."""
    return ({"window": window} if window else {}) | ({"kv_dtype": kv_dtype} if kv_dtype else {})


def decode_rows(heads: Sequence[HeadShape], kv_dtype: str = "") -> Iterator[ShapeRow]:
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


def prefill_rows(heads: Sequence[HeadShape], kv_dtype: str = "") -> Iterator[ShapeRow]:
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


def mixed_rows(heads: Sequence[HeadShape]) -> Iterator[ShapeRow]:
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


def mla_prefill_rows() -> Iterator[ShapeRow]:
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


def mla_decode_rows(kv_dtype: str = "") -> Iterator[ShapeRow]:
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


def matrix_rows(
    kind: str, dtype: str, wide: Sequence[int], points: Sequence[int] = ROWS, **more: Any
) -> Iterator[ShapeRow]:
    """m rows of n columns."""
    for n, m in tiers(wide, points):
        yield {"kind": kind, "dtype": dtype, "m": m, "n": n, **more}


def rope_rows(heads: Sequence[HeadShape]) -> Iterator[ShapeRow]:
    """Rope of queries and keys."""
    for (h, kv, d, _), m in tiers(heads, ROWS):
        yield {"kind": "rope", "dtype": "bf16", "m": m, "heads": h, "kv_heads": kv, "head_dim": d}


def kv_write_rows(heads: Sequence[HeadShape]) -> Iterator[ShapeRow]:
    """Keys and values into the cache."""
    for (kv, d), m in tiers(list(dict.fromkeys((kv, d) for _, kv, d, _ in heads)), ROWS):
        yield {"kind": "kv_write", "dtype": "bf16", "m": m, "kv_heads": kv, "head_dim": d}


def single_size_rows(kind: str, key: str, numbers: Iterable[int]) -> Iterator[ShapeRow]:
    """Kinds of one size: copies, launches."""
    for number in numbers:
        yield {"kind": kind, "dtype": "bf16", key: number}


def collective_rows(ranks: Sequence[int], library: str) -> Iterator[ShapeRow]:
    """Collectives over message sizes; a CPU's are small ones, to try it out."""
    size = [1 << p for p in ((12, 18, 24, 14, 16, 20, 22, 26, 28, 10) if not library else (12, 16, 20))]
    for n, (bytes_, kind) in product(
        ranks, product(size, ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    ):
        yield {"kind": kind, "dtype": "bf16", "bytes": bytes_, "ranks": n, **({"library": library} if library else {})}


def all_shapes(ranks: Sequence[int] = RANKS, library: str = "") -> list[ShapeRow]:
    """All shapes, in the order in which they are worth measuring; collectives over groups of so many ``ranks``."""
    plain = [(*shape, 0) for shape in heads()]
    windowed = windows()[:12]
    hidden, inner = (4096, 2048, 8192, 5120, 7168, 1024), (28672, 6144, 57344, 22016, 12288, 1536)
    vocabularies, some = (128256, 32000, 151936), (1, 8, 64, 256, 16, 32, 128, 512)
    lists = (
        single_size_rows("launch", "kernels", (64, 256, 16)),
        single_size_rows("graph_replay", "kernels", (64, 256, 1024, 16, 1)),
        single_size_rows("copy", "bytes", (1 << p for p in (28, 20, 12, 24, 16, 32, 14, 18, 22, 26, 30))),
        linear_rows("bf16", 10**6),
        decode_rows(plain[:24]),
        prefill_rows(plain[:24]),
        expert_rows("bf16", 10**6),
        linear_rows("fp8", 48, 16),
        mixed_rows(plain[:8]),
        mla_decode_rows(),
        mla_prefill_rows(),
        linear_rows("fp8-block", 40, 128),
        linear_rows("int8", 32, 16),
        linear_rows("w4a16", 40, 128),
        linear_rows("w8a16", 16, 128),
        expert_rows("fp8", 24, 16),
        expert_rows("fp8-block", 24, 128),
        expert_rows("bf16", 6, skew=1.0),
        expert_rows("bf16", 3, skew=0.5),
        expert_parallel_rows("bf16", 3),
        decode_rows(windowed),
        prefill_rows(windowed),
        decode_rows(plain[:8], "fp8"),
        prefill_rows(plain[:4], "fp8"),
        mla_decode_rows("fp8"),
        matrix_rows("norm", "bf16", hidden),
        matrix_rows("activation", "bf16", inner),
        rope_rows(plain[:12]),
        kv_write_rows(plain[:12]),
        (row for n in vocabularies for row in matrix_rows("embedding", "bf16", hidden[:3], some, rows=n)),
        matrix_rows("sampler", "bf16", vocabularies, some),
        matrix_rows("quantize", "fp8", hidden),
        matrix_rows("quantize", "fp8", hidden[:3], block=128),
        matrix_rows("quantize", "int8", hidden[:3]),
        collective_rows(ranks, library),
    )
    rows = turns([list(one) for one in lists])
    return list({tuple(row.items()): row for row in rows}.values())
