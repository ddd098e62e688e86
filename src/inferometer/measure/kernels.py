"""Kernels that engines run, by shape: one decorated function per kind gives calls that do the work once.

vLLM's own kernels where it can be imported, PyTorch's where not; every row says which. A case prepares buffers for a
shape and returns one call per buffer set, enough of them that together they are larger than the device's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from .clock import Work

CACHE = 128e6  # bytes that rotating buffers must exceed: twice the largest L2


class Ready(NamedTuple):
    """A kernel ready to be timed."""

    calls: list[Work]
    source: str  # whose kernel it is


Prepare = Callable[..., Ready]
CASES: dict[str, Prepare] = {}


def case(kind: str) -> Callable[[Prepare], Prepare]:
    """Register how a kind of kernel is prepared: ``@case("linear")``."""

    def register(function: Prepare) -> Prepare:
        if kind in CASES:
            raise ValueError(f"kernel kind {kind!r} is registered twice")
        CASES[kind] = function
        return function

    return register


class Bench(NamedTuple):
    """Where kernels run: torch, the device, vLLM if it is there, and buffers that shapes share."""

    torch: Any
    device: str
    vllm: Any
    shelf: dict[Any, Any]

    def random(self, *shape: int, dtype: Any = None) -> Any:
        """Random numbers of unit size; zeros would run faster than real data."""
        t = self.torch
        return t.empty(shape, device=self.device, dtype=dtype or t.bfloat16).normal_()

    def copies(self, key: Any, each: float, make: Callable[[], Any]) -> list[Any]:
        """Enough copies of a buffer to outgrow the cache, kept until another key is asked for."""
        number = max(1, min(64, math.ceil(CACHE / max(each, 1.0)))) if self.device == "cuda" else 1
        if self.shelf.get("key") != key:
            self.shelf.clear()
            self.shelf["key"], self.shelf["made"] = key, [make() for _ in range(number)]
        made: list[Any] = self.shelf["made"]
        return made


@case("linear")
def linear(b: Bench, *, dtype: str, m: int, n: int, k: int) -> Ready:
    """A product of m rows with an n × k weight, in bf16 or in fp8 with scales per tensor."""
    t = b.torch
    x = b.random(m, k)
    if dtype == "fp8":
        weights = b.copies(("fp8", n, k), n * k, lambda: b.random(n, k).to(t.float8_e4m3fn).t())
        one = t.ones((), device=b.device, dtype=t.float32)
        x8 = x.to(t.float8_e4m3fn)
        if b.vllm is not None:
            ops = b.vllm._custom_ops
            return Ready([partial(ops.cutlass_scaled_mm, x8, w, one, one, t.bfloat16) for w in weights], "vllm")
        return Ready([partial(t._scaled_mm, x8, w, one, one, out_dtype=t.bfloat16) for w in weights], "torch")
    weights = b.copies(("bf16", n, k), n * k * 2, lambda: b.random(n, k))
    product = t.nn.functional.linear
    return Ready([partial(product, x, w) for w in weights], "torch")


@case("quantize")
def quantize(b: Bench, *, dtype: str, m: int, n: int) -> Ready:
    """Activations to fp8 with a scale found on the way."""
    if b.vllm is None:
        raise LookupError("needs vLLM's kernel")
    ops = b.vllm._custom_ops
    rows = b.copies(("q", m, n), m * n * 2, lambda: b.random(m, n))
    return Ready([partial(ops.scaled_fp8_quant, x) for x in rows], "vllm")


@case("decode_attention")
def decode_attention(
    b: Bench, *, dtype: str, seqs: int, heads: int, kv_heads: int, head_dim: int, context: int
) -> Ready:
    """One query token a sequence over a paged cache."""
    return _attention(b, seqs, 1, context, heads, kv_heads, head_dim)


@case("prefill_attention")
def prefill_attention(b: Bench, *, dtype: str, seqs: int, heads: int, kv_heads: int, head_dim: int, new: int,
                      context: int) -> Ready:  # fmt: skip
    """``new`` query tokens a sequence, of which the last sees ``context`` positions."""
    return _attention(b, seqs, new, context, heads, kv_heads, head_dim)


def _attention(
    b: Bench, seqs: int, new: int, context: int, heads: int, kv_heads: int, dim: int, block: int = 16
) -> Ready:
    t, block = b.torch, 16  # tokens a page
    q = b.random(seqs * new, heads, dim)
    if b.vllm is None:
        kv = b.copies(("kv", seqs, context, kv_heads, dim), 4.0 * seqs * context * kv_heads * dim,
                      lambda: tuple(b.random(seqs, kv_heads, context, dim) for _ in range(2)))  # fmt: skip
        query = q.view(seqs, new, heads, dim).transpose(1, 2)
        attend = t.nn.functional.scaled_dot_product_attention
        causal = new == context
        return Ready([partial(attend, query, k, v, is_causal=causal, enable_gqa=True) for k, v in kv], "torch")
    per = -(-context // block)

    def pages() -> Any:
        table = t.randperm(seqs * per, device=b.device, dtype=t.int64).to(t.int32).view(seqs, per)
        return b.random(seqs * per, block, kv_heads, dim), b.random(seqs * per, block, kv_heads, dim), table

    kv = b.copies(("pages", seqs, context, kv_heads, dim), 4.0 * seqs * context * kv_heads * dim, pages)
    starts = t.arange(0, seqs * new + 1, new, device=b.device, dtype=t.int32)
    used = t.full((seqs,), context, device=b.device, dtype=t.int32)
    out = t.empty_like(q)
    flash, version = b.vllm.flash, b.vllm.flash_version
    more: dict[str, Any] = {"fa_version": version}
    if version == 3:  # the engine plans the split over the context once a step, not once a layer
        splits = 32 if new == 1 else 0
        more |= {"num_splits": splits, "scheduler_metadata": b.vllm.plan(
            batch_size=seqs, max_seqlen_q=new, max_seqlen_k=context, num_heads_q=heads, num_heads_kv=kv_heads,
            headdim=dim, cache_seqlens=used, qkv_dtype=t.bfloat16, cu_seqlens_q=starts, page_size=block, causal=True,
            num_splits=splits)}  # fmt: skip

    run = partial(flash, q=q, out=out, cu_seqlens_q=starts, max_seqlen_q=new, seqused_k=used, max_seqlen_k=context,
                  softmax_scale=dim**-0.5, causal=True, **more)  # fmt: skip
    return Ready([partial(run, k=k, v=v, block_table=table) for k, v, table in kv], f"vllm FlashAttention {version}")


@case("moe")
def moe(b: Bench, *, dtype: str, tokens: int, hidden: int, inner: int, experts: int, top_k: int) -> Ready:
    """Routed experts with even routing: gate and up, activation, down, weighted sum."""
    if b.vllm is None:
        raise LookupError("needs vLLM's fused experts")
    t = b.torch
    x = b.random(tokens, hidden)

    def weights() -> Any:
        return b.random(experts, 2 * inner, hidden) * 0.05, b.random(experts, hidden, inner) * 0.05

    pair = b.copies(("moe", experts, hidden, inner), 6.0 * experts * hidden * inner, weights)[0]
    calls: list[Work] = []
    for _ in range(8 if tokens <= 512 else 1):  # another choice of experts each time
        ids = t.rand(tokens, experts, device=b.device).topk(top_k, dim=1).indices.to(t.int32)
        share = t.full((tokens, top_k), 1.0 / top_k, device=b.device, dtype=t.float32)
        calls.append(partial(b.vllm.fused_experts, x, *pair, share, ids))
    return Ready(calls, "vllm")


@case("norm")
def norm(b: Bench, *, dtype: str, m: int, n: int) -> Ready:
    """RMSNorm with the residual added in the same kernel."""
    t = b.torch
    rows = b.copies(("norm", m, n), m * n * 4, lambda: (b.random(m, n), b.random(m, n)))
    weight = b.random(n)
    if b.vllm is not None:
        fused = b.vllm._custom_ops.fused_add_rms_norm
        return Ready([partial(fused, x, residual, weight, 1e-6) for x, residual in rows], "vllm")

    def added(x: Any, residual: Any) -> Any:
        return t.nn.functional.rms_norm(x + residual, (n,), weight)

    return Ready([partial(added, x, residual) for x, residual in rows], "torch")


@case("activation")
def activation(b: Bench, *, dtype: str, m: int, n: int) -> Ready:
    """SiLU of one half times the other: n columns in, n/2 out."""
    t = b.torch
    rows = b.copies(("act", m, n), m * n * 3, lambda: (b.random(m, n), b.random(m, n // 2)))
    if b.vllm is not None:
        return Ready([partial(t.ops._C.silu_and_mul, out, x) for x, out in rows], "vllm")

    def gated(x: Any) -> Any:
        return t.nn.functional.silu(x[:, : n // 2]) * x[:, n // 2 :]

    return Ready([partial(gated, x) for x, _ in rows], "torch")


@case("copy")
def copy(b: Bench, *, dtype: str, bytes: int) -> Ready:
    """A device copy: half of the bytes read, half written."""
    rows = b.copies(("copy", bytes), bytes, lambda: (b.random(bytes // 4), b.random(bytes // 4)))
    return Ready([partial(target.copy_, source) for source, target in rows], "torch")


@case("sampler")
def sampler(b: Bench, *, dtype: str, m: int, n: int) -> Ready:
    """Greedy sampling: logits to fp32, then the largest."""
    t = b.torch
    rows = b.copies(("logits", m, n), m * n * 2, lambda: b.random(m, n))

    def largest(x: Any) -> Any:
        return x.to(t.float32).argmax(dim=-1)

    return Ready([partial(largest, x) for x in rows], "torch")
