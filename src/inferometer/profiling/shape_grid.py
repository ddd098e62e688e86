"""Which shapes are worth measuring: those of the catalogue's common models, at batches and contexts that engines see.

Each kind of kernel is a list, most telling shapes first. The lists are taken in turns, a few rows of each and then
twice as many each time, so that a short budget already spans all kinds and a long one finishes them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple, TypeVar

from .common_sizes import heads, latents, mixtures, products, windows

ShapeRow = dict[str, Any]
HeadShape = tuple[int, int, int, int]  # heads, KV heads, head dimension, window (0 = none)
A = TypeVar("A")
B = TypeVar("B")

ROWS = (1, 8, 64, 512, 4096, 2, 4, 16, 32, 128, 256, 1024, 2048, 8192, 24, 48, 96, 192, 384, 768, 1536)
TOKENS = (1, 8, 64, 512, 4096, 2, 4, 16, 32, 128, 256, 1024, 2048, 8192, 24, 48, 96, 192, 384)
OPEN_EXPERTS = ((2880, 2880, 128, 4), (2880, 2880, 32, 4))  # gpt-oss: hidden, inner, experts, top_k
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
CHUNKS = (
    *((1, 8192, context) for context in (8192, 65536, 16384, 32768, 24576, 49152)),
    *((1, new, new) for new in (1024, 256, 4096, 2048, 512, 128)),
    *((1, new, context) for new, context in ((2048, 10240), (512, 16384), (1024, 33792))),
    *((seqs, new, new) for seqs, new in ((4, 2048), (16, 512), (64, 128))),
)  # prompts in the steps that engines make of them: sequences, new tokens, context
TILED = tuple((context, seqs) for seqs in (128, 512, 96, 160, 256) for context in (137, 128, 264, 520, 1032))
# contexts at and just beyond what a decode kernel takes at once, and many sequences
SCANS = (
    *((1, new) for new in (1024, 8192, 512, 4096, 2048)),
    *((8, 1024), (32, 256), (1, 256), (1, 16384), (1, 128), (16, 128), (4, 256), (64, 64)),
)  # prompts of a recurrent layer: sequences, new tokens of each
UPDATES = (1, 64, 256, 8, 32, 128, 512, 16, 2, 4, 384, 96)  # sequences that decode in one


class MambaShape(NamedTuple):
    """Mamba-2 of one rank: ``MambaShape(128, 64, 128, 1, 256)``"""

    heads: int
    value_dim: int
    key_dim: int
    groups: int
    chunk: int
    dtype: str = "bf16"  # of the state

    @property
    def channels(self) -> int:
        """Of the convolution: values, and the keys and queries of all groups."""
        return self.heads * self.value_dim + 2 * self.groups * self.key_dim

    @property
    def sizes(self) -> ShapeRow:
        """As rows have them."""
        return {"heads": self.heads, "value_dim": self.value_dim, "key_dim": self.key_dim, "groups": self.groups}


MAMBAS = (  # shapes that Triton tunes once together come one after the other
    MambaShape(128, 64, 128, 1, 256),  # Bamba 9B, Granite 4.0 H Small
    MambaShape(128, 64, 128, 8, 256),  # Codestral Mamba 7B
    MambaShape(64, 64, 128, 8, 128, "fp32"),  # Nemotron 3 Nano; half of Nemotron-H 8B
    MambaShape(128, 80, 128, 8, 128, "fp32"),  # Nemotron Nano 9B and 12B v2
    MambaShape(48, 64, 128, 1, 256),  # Granite 4.0 H Tiny
    MambaShape(128, 64, 128, 8, 128, "fp32"),  # Nemotron-H 8B
    MambaShape(24, 128, 256, 1, 128),  # Falcon-H1 7B
)
DELTAS = ((16, 32, 128, 128), (8, 16, 128, 128))  # Qwen3-Next, and half of it: key and value heads, and their sizes
DELTA_CHANNELS = 2 * 16 * 128 + 32 * 128  # of Qwen3-Next's convolution
CONV_WIDTH = 4
GATED = ((8192, 1), (10240, 8), (4096, 8))  # columns and groups of the gated norm
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


def chosen_shapes(rows: Sequence[ShapeRow], kinds: Sequence[tuple[str, str]]) -> list[ShapeRow]:
    """The rows of some kinds, and formats where one is named, in turns by the order of the kinds.

    ``chosen_shapes(all_shapes(), [("conv1d", ""), ("moe", "mxfp4")])``
    """
    lists = [
        [row for row in rows if row["kind"] == kind and format_ in ("", row["dtype"], row.get("kv_dtype"))]
        for kind, format_ in kinds
    ]
    return list({tuple(row.items()): row for row in turns(lists)}.values())


# ------------------------------------------------------------------ products and experts


def linear_rows(dtype: str, most: int, multiple: int = 1) -> Iterator[ShapeRow]:
    """Common weights at every number of rows; those with sides in multiples of what a format wants."""
    weights = [(n, k) for n, k in products() if n % multiple == 0 and k % multiple == 0]
    for (n, k), m in tiers(weights[:most], ROWS):
        if 2.0 * m * n * k <= MOST_FLOPS:
            yield {"kind": "linear", "dtype": dtype, "m": m, "n": n, "k": k}


def expert_rows(
    dtype: str, most: int, multiple: int = 1, skew: float = 0.0, shapes: Sequence[tuple[int, int, int, int]] = ()
) -> Iterator[ShapeRow]:
    """Routed experts of the common mixtures, whole and sliced."""
    shapes = shapes or [shape for shape in mixtures() if shape[0] % multiple == 0 and shape[1] % multiple == 0]
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


def routing_rows() -> Iterator[ShapeRow]:
    """Which rows go to which expert, from logits and of chosen experts."""
    shapes = list(dict.fromkeys((experts, top_k) for _, _, experts, top_k in OPEN_EXPERTS))
    for (experts, top_k), tokens in tiers(shapes, TOKENS):
        for chosen in ({}, {"chosen": 1}):
            row = {"kind": "moe_routing", "dtype": "bf16", "tokens": tokens, "experts": experts, "top_k": top_k}
            yield row | chosen


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


def decode_rows(
    heads: Sequence[HeadShape], kv_dtype: str = "", points: Sequence[tuple[int, int]] = DECODES
) -> Iterator[ShapeRow]:
    """Decode attention over batches and contexts; with a window over contexts that are longer."""
    for (h, kv, d, window), (context, seqs) in tiers(heads, points, 12):
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


def prefill_rows(
    heads: Sequence[HeadShape], kv_dtype: str = "", points: Sequence[tuple[int, int, int]] = PROMPTS
) -> Iterator[ShapeRow]:
    """Prefill attention: whole prompts of many lengths, and chunks after a cached part."""
    for (h, kv, d, window), (seqs, new, context) in tiers(heads, points, 12):
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


# ------------------------------------------------------------------ recurrent layers


def state_update_rows() -> Iterator[ShapeRow]:
    """Mamba-2's update of a state for each sequence, in both formats that engines keep states in."""
    formats = [(mamba, dtype) for mamba in MAMBAS for dtype in (mamba.dtype, *{"bf16", "fp32"} - {mamba.dtype})]
    shapes = {(dtype, *mamba.sizes.values()): (mamba, dtype) for mamba, dtype in formats}
    for (mamba, dtype), seqs in tiers(list(shapes.values()), UPDATES):
        yield {"kind": "state_update", "dtype": dtype, "seqs": seqs, **mamba.sizes}


def chunk_scan_rows() -> Iterator[ShapeRow]:
    """Mamba-2's scan of prompts: one layer's shape after the other, because each must be tuned first."""
    for mamba, (seqs, new) in product(MAMBAS, SCANS):
        row = {"kind": "chunk_scan", "dtype": mamba.dtype, "m": seqs * new, "seqs": seqs}
        yield row | mamba.sizes | {"chunk": mamba.chunk}


def conv_rows() -> Iterator[ShapeRow]:
    """The short convolution of recurrent layers, of one token a sequence (as many as sequences) and of prompts."""
    channels = list(dict.fromkeys([*(mamba.channels for mamba in MAMBAS), DELTA_CHANNELS]))
    steps = [(seqs, seqs) for seqs in UPDATES]
    prompts = [(seqs * new, seqs) for seqs, new in SCANS]
    points = [point for pair in zip(prompts, steps, strict=False) for point in pair]
    for n, (m, seqs) in tiers(channels, points, 8):
        yield {"kind": "conv1d", "dtype": "bf16", "m": m, "seqs": seqs, "n": n, "k": CONV_WIDTH}


def gdn_rows(kind: str) -> Iterator[ShapeRow]:
    """Gated delta nets, over prompts or for one token a sequence."""
    points = SCANS if kind == "gdn_prefill" else tuple((seqs, 0) for seqs in UPDATES)
    for shape, (seqs, new) in product(DELTAS, points):
        names = ("key_heads", "value_heads", "key_dim", "value_dim")
        tokens = {"m": seqs * new} if new else {}
        yield {"kind": kind, "dtype": "bf16", **tokens, "seqs": seqs, **dict(zip(names, shape, strict=True))}


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


def _eight_bit_lists(plain: Sequence[HeadShape]) -> list[Iterator[ShapeRow]]:
    """Attention over a cache in fp8, with windows and in the chunks of long prompts; contexts at the edges of tiles."""
    whole = [(32, 8, 128, 0), (16, 8, 256, 0), (64, 8, 64, 0), (32, 4, 128, 0)]
    sliding = [(16, 8, 256, 1024), (64, 8, 64, 128), (16, 8, 256, 4096)]
    return [
        prefill_rows(whole, "fp8", CHUNKS),
        decode_rows(whole, "fp8"),
        decode_rows(sliding, "fp8"),
        decode_rows(whole, "fp8", TILED),
        decode_rows(whole, "", TILED),
        decode_rows(plain[:8], "fp8"),
        prefill_rows(plain[:4], "fp8"),
        prefill_rows(sliding, "fp8", CHUNKS),
        mla_decode_rows("fp8"),
    ]


def _small_lists(plain: Sequence[HeadShape]) -> list[Iterator[ShapeRow]]:
    """Kernels that move more than they compute."""
    hidden, inner = (4096, 2048, 8192, 5120, 7168, 1024), (28672, 6144, 57344, 22016, 12288, 1536)
    vocabularies, some = (128256, 32000, 151936, 201088, 262144), (1, 8, 64, 256, 16, 32, 128, 512)
    return [
        matrix_rows("norm", "bf16", hidden),
        matrix_rows("activation", "bf16", inner),
        rope_rows(plain[:12]),
        kv_write_rows(plain[:12]),
        (row for n in vocabularies[:3] for row in matrix_rows("embedding", "bf16", hidden[:3], some, rows=n)),
        matrix_rows("sampler", "bf16", vocabularies, some),
        matrix_rows("sampler", "bf16", vocabularies, some, method="gumbel"),
        matrix_rows("norm", "fp8", hidden[:3]),
        matrix_rows("activation", "fp8", inner[:3]),
        (row for n, groups in GATED for row in matrix_rows("gated_norm", "bf16", (n,), groups=groups)),
        matrix_rows("quantize", "fp8", hidden),
        matrix_rows("quantize", "fp8", hidden[:3], block=128),
        matrix_rows("quantize", "int8", hidden[:3]),
    ]


def all_shapes(ranks: Sequence[int] = RANKS, library: str = "") -> list[ShapeRow]:
    """All shapes, in the order in which they are worth measuring; collectives over groups of so many ``ranks``."""
    plain = [(*shape, 0) for shape in heads()]
    windowed = windows()[:12]
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
        expert_rows("mxfp4", 2, shapes=OPEN_EXPERTS),
        routing_rows(),
        expert_rows("bf16", 6, skew=1.0),
        expert_rows("bf16", 3, skew=0.5),
        expert_parallel_rows("bf16", 3),
        decode_rows(windowed),
        prefill_rows(windowed),
        *_eight_bit_lists(plain),
        state_update_rows(),
        conv_rows(),
        gdn_rows("gdn_decode"),
        *_small_lists(plain),
        collective_rows(ranks, library),
        chunk_scan_rows(),  # these two last: Triton may tune them for a minute
        gdn_rows("gdn_prefill"),
    )
    rows = turns([list(one) for one in lists])
    return list({tuple(row.items()): row for row in rows}.values())
