"""Softmax attention over a cache: prompts, decoding sequences, and both in one call.

An engine's kernel reads pages in random order. PyTorch's own FlashAttention reads one sequence after another; its
``scaled_dot_product_attention`` with a mask is the last resort, and what a CPU runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import msgspec

from ...base.units import ceil_div
from .runner import KernelBench, Missing, Ready, case

PAGE = 16  # tokens a page, the engines' default
SPLITS = 32  # parts of a context that one sequence may be spread over: vLLM's limit in steps that fit a CUDA graph
GRAPH_TOKENS = 512  # of the largest such step, by default


class SequenceGroup(NamedTuple):
    """Sequences that are alike: ``Group(8, 1, 4096)`` are eight that decode with 4,096 tokens each."""

    seqs: int
    new: int  # query tokens a sequence
    context: int  # positions that its last query sees, the new ones included


class AttentionBatch(NamedTuple):
    """What one call attends to."""

    groups: tuple[SequenceGroup, ...]
    heads: int
    kv_heads: int
    dim: int
    window: int = 0  # a query sees the last ``window`` positions; 0 = all
    kv_dtype: str = ""  # of the cache, where it is not the query's

    @property
    def news(self) -> list[int]:
        """Query tokens of every sequence."""
        return [g.new for g in self.groups for _ in range(g.seqs)]

    @property
    def contexts(self) -> list[int]:
        """Positions of every sequence."""
        return [g.context for g in self.groups for _ in range(g.seqs)]

    @property
    def cached(self) -> float:
        """Bytes of keys and values."""
        return self._bytes(g.context for g in self.groups)

    @property
    def seen(self) -> float:
        """Bytes of those that some query sees."""
        window = self.window or math.inf
        return self._bytes(min(g.context, g.new - 1 + window) for g in self.groups)

    def _bytes(self, positions: Iterable[float]) -> float:
        tokens = sum(g.seqs * each for g, each in zip(self.groups, positions, strict=True))
        return 2.0 * tokens * self.kv_heads * self.dim * (1 if self.kv_dtype else 2)


@case("decode_attention")
def decode_attention(
    b: KernelBench,
    *,
    dtype: str,
    seqs: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    context: int,
    window: int = 0,
    kv_dtype: str = "",
) -> Ready:
    """One query token a sequence."""
    return _attend(b, AttentionBatch((SequenceGroup(seqs, 1, context),), heads, kv_heads, head_dim, window, kv_dtype))


@case("prefill_attention")
def prefill_attention(
    b: KernelBench,
    *,
    dtype: str,
    seqs: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    new: int,
    context: int,
    window: int = 0,
    kv_dtype: str = "",
) -> Ready:
    """``new`` query tokens a sequence, of which the last sees ``context`` positions."""
    return _attend(b, AttentionBatch((SequenceGroup(seqs, new, context),), heads, kv_heads, head_dim, window, kv_dtype))


@case("mixed_attention")
def mixed_attention(
    b: KernelBench,
    *,
    dtype: str,
    new: int,
    cached: int,
    seqs: int,
    context: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
) -> Ready:
    """A piece of a prompt after its ``cached`` tokens, and ``seqs`` decoding sequences, in one call."""
    return _attend(
        b,
        AttentionBatch(
            (SequenceGroup(1, new, cached + new), SequenceGroup(seqs, 1, context)), heads, kv_heads, head_dim
        ),
    )


def _attend(b: KernelBench, batch: AttentionBatch) -> Ready:
    if batch.kv_dtype not in ("", "fp8"):
        raise Missing(f"no attention over a cache in {batch.kv_dtype} is known")
    ready = b.first(*(partial(attempt, b, batch) for attempt in (_vllm, _flash, _masked)))
    return msgspec.structs.replace(ready, cold=batch.seen)


def starts(b: KernelBench, lengths: list[int]) -> Any:
    """Where each sequence begins, and the end: ``starts(b, [2, 3])  # tensor([0, 2, 5])``"""
    return b.torch.tensor([0, *accumulate(lengths)], device=b.device, dtype=b.torch.int32)


def flash_version(b: KernelBench, dim: int) -> int:
    """The FlashAttention that vLLM would choose on this device."""
    try:
        version = b.vllm("v1.attention.backends.fa_utils:get_flash_attn_version")(head_size=dim)
        if version:
            return int(version)
    except Exception:  # another version of vLLM: ask the kernels themselves
        pass
    return 3 if b.vllm("vllm_flash_attn:is_fa_version_supported")(3) else 2


def pages(b: KernelBench, contexts: list[int], page: int = PAGE) -> tuple[int, Any]:
    """How many pages these contexts fill, and which, in random order, each sequence has."""
    t = b.torch
    counts = [ceil_div(context, page) for context in contexts]
    order = t.randperm(sum(counts), dtype=t.int64).to(t.int32)
    table = t.zeros(len(counts), max(counts), dtype=t.int32)
    for row, (count, end) in enumerate(zip(counts, accumulate(counts), strict=True)):
        table[row, :count] = order[end - count : end]
    return sum(counts), table.to(b.device)


def _vllm(b: KernelBench, batch: AttentionBatch) -> Ready:
    t = b.torch
    flash = b.vllm("vllm_flash_attn:flash_attn_varlen_func")
    version = flash_version(b, batch.dim)
    kept = t.float8_e4m3fn if batch.kv_dtype else t.bfloat16
    news, contexts = batch.news, batch.contexts

    def made() -> Any:
        number, table = pages(b, contexts)
        shape = (number, PAGE, batch.kv_heads, batch.dim)
        return b.random(*shape, dtype=kept), b.random(*shape, dtype=kept), table

    cache = b.copies(("pages", batch), batch.cached, made)
    q = b.random(sum(news), batch.heads, batch.dim, dtype=kept)  # the engine quantises queries as the cache
    begins, used = starts(b, news), t.tensor(contexts, device=b.device, dtype=t.int32)
    more: dict[str, Any] = {"fa_version": version}
    if batch.window:
        more["window_size"] = [batch.window - 1, 0]
    if batch.kv_dtype:
        if version < 3:
            raise Missing(f"FlashAttention {version} has no 8-bit cache")
        ones = t.ones(len(contexts), batch.kv_heads, device=b.device)
        more |= {"q_descale": ones, "k_descale": ones, "v_descale": ones}
    more["num_splits"] = splits = SPLITS if sum(news) <= GRAPH_TOKENS else 0
    if version == 3 and not batch.window:  # planned once a step, not once a layer, where all layers have one window
        plan = b.vllm("vllm_flash_attn:get_scheduler_metadata")(
            batch_size=len(contexts),
            max_seqlen_q=max(news),
            max_seqlen_k=max(contexts),
            num_heads_q=batch.heads,
            num_heads_kv=batch.kv_heads,
            headdim=batch.dim,
            cache_seqlens=used,
            qkv_dtype=kept,
            cu_seqlens_q=begins,
            page_size=PAGE,
            causal=True,
            window_size=(-1, -1),
            num_splits=splits,
        )
        more["scheduler_metadata"] = plan
    run = partial(
        flash,
        q=q,
        out=t.empty(q.shape, device=b.device, dtype=t.bfloat16),
        cu_seqlens_q=begins,
        max_seqlen_q=max(news),
        seqused_k=used,
        max_seqlen_k=max(contexts),
        softmax_scale=batch.dim**-0.5,
        causal=True,
        **more,
    )
    return Ready([partial(run, k=k, v=v, block_table=table) for k, v, table in cache], f"vllm FlashAttention {version}")


def _flash(b: KernelBench, batch: AttentionBatch) -> Ready:
    """PyTorch's FlashAttention 2 over sequences of different lengths."""
    t = b.torch
    if not b.gpu:
        raise Missing("FlashAttention is for GPUs")
    if batch.kv_dtype:
        raise Missing("PyTorch's FlashAttention has no 8-bit cache")
    news, contexts = batch.news, batch.contexts
    shape = (sum(contexts), batch.kv_heads, batch.dim)
    cache = b.copies(("rows", batch), batch.cached, lambda: (b.random(*shape), b.random(*shape)))
    q, begins, ends = b.random(sum(news), batch.heads, batch.dim), starts(b, news), starts(b, contexts)
    more = {"window_size_left": batch.window - 1, "window_size_right": 0} if batch.window else {}

    def attend(k: Any, v: Any) -> Any:
        return t.ops.aten._flash_attention_forward(
            q, k, v, begins, ends, max(news), max(contexts), 0.0, True, False, scale=batch.dim**-0.5, **more
        )[0]

    return Ready([partial(attend, k, v) for k, v in cache], "torch FlashAttention 2")


def _masked(b: KernelBench, batch: AttentionBatch) -> Ready:
    t = b.torch
    if batch.kv_dtype:
        b.cpu_only("an 8-bit cache")
    kept = t.float8_e4m3fn if batch.kv_dtype else t.bfloat16

    def made() -> Any:
        return [
            tuple(b.random(g.seqs, batch.kv_heads, g.context, batch.dim, dtype=kept) for _ in range(2))
            for g in batch.groups
        ]

    cache = b.copies(("groups", batch), batch.cached, made)
    queries = [b.random(g.seqs, batch.heads, g.new, batch.dim) for g in batch.groups]
    masks = [mask(b, g.new, g.context, batch.window) for g in batch.groups]
    attend = t.nn.functional.scaled_dot_product_attention

    def run(pairs: Any) -> Any:
        return [
            attend(q, k.to(t.bfloat16), v.to(t.bfloat16), attn_mask=seen, enable_gqa=True)
            for q, seen, (k, v) in zip(queries, masks, pairs, strict=True)
        ]

    inputs = {"groups": [(q, k, v) for q, (k, v) in zip(queries, cache[0], strict=True)]}
    source = "torch sdpa, dequantised" if batch.kv_dtype else "torch sdpa"
    return Ready([partial(run, pairs) for pairs in cache], source, inputs)


def mask(b: KernelBench, new: int, context: int, window: int = 0) -> Any:
    """Which positions each query sees, the last query all; None where every one sees all."""
    if new == 1 and (not window or window >= context):
        return None
    t = b.torch
    here = t.arange(context - new, context, device=b.device)[:, None]
    there = t.arange(context, device=b.device)[None, :]
    seen = there <= here
    return seen & (there > here - window) if window else seen
