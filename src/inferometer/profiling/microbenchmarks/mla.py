"""Latent attention (MLA): prompts with expanded keys and values, decoding over the cached latents themselves."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import msgspec

from .paged_attention import SPLITS, flash_version, mask, pages, starts
from .runner import KernelBench, Missing, Ready, case

PAGE = 64  # tokens a page: what the engines' latent kernels want


@case("mla_prefill")
def mla_prefill(
    b: KernelBench, *, dtype: str, seqs: int, heads: int, new: int, context: int, qk_dim: int, v_dim: int
) -> Ready:
    """``new`` query tokens a sequence; the latents of all ``context`` positions are expanded already."""
    shape = Prompt(seqs, heads, new, context, qk_dim, v_dim)
    ready = b.first(*(partial(attempt, b, shape) for attempt in (_prompt_vllm, _prompt_flash, _prompt_masked)))
    return msgspec.structs.replace(ready, cold=shape.size)


class Prompt(NamedTuple):
    """Prompts of one length; every head has its own keys and values."""

    seqs: int
    heads: int
    new: int
    context: int
    qk_dim: int
    v_dim: int

    @property
    def size(self) -> float:
        """Bytes of keys and values."""
        return 2.0 * self.seqs * self.context * self.heads * (self.qk_dim + self.v_dim)


def _prompt_rows(b: KernelBench, s: Prompt) -> tuple[Any, list[Any], Any, Any]:
    """Queries, keys and values as rows of tokens, and where sequences begin."""
    rows = s.seqs * s.context
    cache = b.copies(
        ("expanded", s), s.size, lambda: (b.random(rows, s.heads, s.qk_dim), b.random(rows, s.heads, s.v_dim))
    )
    q = b.random(s.seqs * s.new, s.heads, s.qk_dim)
    return q, cache, starts(b, [s.new] * s.seqs), starts(b, [s.context] * s.seqs)


def _prompt_vllm(b: KernelBench, s: Prompt) -> Ready:
    t = b.torch
    flash, version = b.vllm("vllm_flash_attn:flash_attn_varlen_func"), flash_version(b, s.qk_dim)
    q, cache, begins, ends = _prompt_rows(b, s)
    short = s.qk_dim - s.v_dim if version == 2 else 0  # FlashAttention 2 wants values as wide as keys
    run = partial(
        flash,
        q=q,
        cu_seqlens_q=begins,
        cu_seqlens_k=ends,
        max_seqlen_q=s.new,
        max_seqlen_k=s.context,
        softmax_scale=s.qk_dim**-0.5,
        causal=True,
        fa_version=version,
    )

    def attend(k: Any, v: Any) -> Any:
        return run(k=k, v=t.nn.functional.pad(v, [0, short]) if short else v)[..., : s.v_dim]

    return Ready([partial(attend, k, v) for k, v in cache], f"vllm FlashAttention {version}")


def _prompt_flash(b: KernelBench, s: Prompt) -> Ready:
    t = b.torch
    if not b.gpu:
        raise Missing("FlashAttention is for GPUs")
    q, cache, begins, ends = _prompt_rows(b, s)

    def attend(k: Any, v: Any) -> Any:
        wide = t.nn.functional.pad(v, [0, s.qk_dim - s.v_dim])
        return t.ops.aten._flash_attention_forward(
            q, k, wide, begins, ends, s.new, s.context, 0.0, True, False, scale=s.qk_dim**-0.5
        )[0][..., : s.v_dim]

    return Ready([partial(attend, k, v) for k, v in cache], "torch FlashAttention 2")


def _prompt_masked(b: KernelBench, s: Prompt) -> Ready:
    t = b.torch
    shape, dims = (s.seqs, s.heads, s.context), (s.qk_dim, s.v_dim)
    cache = b.copies(("expanded heads", s), s.size, lambda: tuple(b.random(*shape, dim) for dim in dims))
    q = b.random(s.seqs, s.heads, s.new, s.qk_dim)
    run = partial(t.nn.functional.scaled_dot_product_attention, q, attn_mask=mask(b, s.new, s.context))
    inputs = {"groups": [(q, *cache[0])]}
    return Ready([partial(run, key=k, value=v) for k, v in cache], "torch sdpa", inputs)


# ------------------------------------------------------------------ decoding


@case("mla_decode")
def mla_decode(
    b: KernelBench, *, dtype: str, seqs: int, heads: int, context: int, kv_rank: int, rope_dim: int, kv_dtype: str = ""
) -> Ready:
    """One query token a sequence; all heads read the same latents, the expansion being part of the query."""
    if kv_dtype not in ("", "fp8"):
        raise Missing(f"no latents in {kv_dtype} are known")
    shape = Latents(seqs, heads, context, kv_rank, rope_dim, kv_dtype)
    tries = (_decode_flash, _decode_flashmla, _decode_flashmla_fp8, _decode_triton, _decode_absorbed)
    ready = b.first(*(partial(attempt, b, shape) for attempt in tries))
    return msgspec.structs.replace(ready, cold=shape.size)


class Latents(NamedTuple):
    """Decoding sequences and their cached latents."""

    seqs: int
    heads: int
    context: int
    rank: int
    rope: int
    kv_dtype: str = ""

    @property
    def width(self) -> int:
        """Elements a cached token."""
        return self.rank + self.rope

    @property
    def size(self) -> float:
        """Bytes of the latents."""
        return float(self.seqs * self.context * self.width * (1 if self.kv_dtype else 2))


def _paged(b: KernelBench, s: Latents) -> tuple[list[Any], Any]:
    """Pages of latents with their tables, and how many tokens each sequence has."""
    t = b.torch
    kept = t.float8_e4m3fn if s.kv_dtype else t.bfloat16

    def made() -> Any:
        number, table = pages(b, [s.context] * s.seqs, PAGE)
        return b.random(number, PAGE, s.width, dtype=kept), table

    return b.copies(("latents", s), s.size, made), t.full((s.seqs,), s.context, device=b.device, dtype=t.int32)


def _decode_flash(b: KernelBench, s: Latents) -> Ready:
    """FlashAttention 3 with the latent part of the query apart: the first choice on Hopper."""
    t = b.torch
    flash = b.vllm("vllm_flash_attn:flash_attn_varlen_func")
    if s.kv_dtype or not b.vllm("vllm_flash_attn:is_fa_version_supported")(3):
        raise Missing("FlashAttention 3 is for Hopper and 16-bit latents")
    cache, used = _paged(b, s)
    begins = starts(b, [1] * s.seqs)
    plan = b.vllm("vllm_flash_attn:get_scheduler_metadata")(
        batch_size=s.seqs,
        max_seqlen_q=1,
        max_seqlen_k=s.context,
        num_heads_q=s.heads,
        num_heads_kv=1,
        headdim=s.rope,
        cache_seqlens=used,
        qkv_dtype=t.bfloat16,
        headdim_v=s.rank,
        page_size=PAGE,
        cu_seqlens_q=begins,
        causal=True,
        num_splits=SPLITS,
    )
    run = partial(
        flash,
        q=b.random(s.seqs, s.heads, s.rope),
        q_v=b.random(s.seqs, s.heads, s.rank),
        max_seqlen_q=1,
        cu_seqlens_q=begins,
        max_seqlen_k=s.context,
        seqused_k=used,
        softmax_scale=s.width**-0.5,
        causal=True,
        fa_version=3,
        scheduler_metadata=plan,
        num_splits=SPLITS,
    )
    return Ready(
        [
            partial(run, k=c[..., s.rank :].unsqueeze(-2), v=c[..., : s.rank].unsqueeze(-2), block_table=table)
            for c, table in cache
        ],
        "vllm FlashAttention 3",
    )


def _decode_flashmla(b: KernelBench, s: Latents) -> Ready:
    home = "v1.attention.ops.flashmla"
    fine, why = b.vllm(f"{home}:is_flashmla_dense_supported")()
    if s.kv_dtype or not fine:
        raise Missing(str(why or "FlashMLA reads 8-bit latents with another kernel"))
    run, plan = b.vllm(f"{home}:flash_mla_with_kvcache"), b.vllm(f"{home}:get_mla_metadata")
    cache, used = _paged(b, s)
    run = partial(
        run,
        q=b.random(s.seqs, 1, s.heads, s.width),
        cache_seqlens=used,
        head_dim_v=s.rank,
        causal=True,
        tile_scheduler_metadata=plan()[0],
        softmax_scale=s.width**-0.5,
    )
    return Ready([partial(run, k_cache=c.unsqueeze(-2), block_table=table) for c, table in cache], "vllm FlashMLA")


def _decode_flashmla_fp8(b: KernelBench, s: Latents) -> Ready:
    t, home = b.torch, "v1.attention.ops.flashmla"
    fine, why = b.vllm(f"{home}:is_flashmla_dense_supported")()
    if not s.kv_dtype or not fine:
        raise Missing(str(why or "this kernel reads 8-bit latents alone"))
    run, plan = b.vllm(f"{home}:flash_mla_with_kvcache_fp8"), b.vllm(f"{home}:get_mla_metadata_dense_fp8")
    cache, used = _paged(b, s)
    tiles, splits = plan(used, s.heads, 1)
    one = t.ones(1, device=b.device)
    run = partial(
        run,
        q=b.random(s.seqs, 1, s.heads, s.width, dtype=t.float8_e4m3fn),
        cache_seqlens=used,
        head_dim_v=s.rank,
        tile_scheduler_metadata=tiles,
        num_splits=splits,
        softmax_scale=s.width**-0.5,
        causal=True,
        descale_q=one,
        descale_k=one,
    )
    return Ready([partial(run, k_cache=c.unsqueeze(-2), block_table=table) for c, table in cache], "vllm FlashMLA fp8")


def _decode_triton(b: KernelBench, s: Latents) -> Ready:
    t = b.torch
    run = b.vllm("v1.attention.ops.triton_decode_attention:decode_attention_fwd")
    try:
        units = t.cuda.get_device_properties(0).multi_processor_count
        splits = int(b.vllm("v1.attention.backends.mla.triton_mla:_compute_num_kv_splits")(s.context, units))
    except Exception:  # another version: what older ones always took
        splits = 4
    cache, used = _paged(b, s)
    q = b.random(s.seqs, s.heads, s.width)
    out, lse = b.random(s.seqs, s.heads, s.rank), b.random(s.seqs, s.heads)
    scores = t.empty(s.seqs, s.heads, splits, s.rank + 1, device=b.device)

    def attend(latents: Any, table: Any) -> Any:
        run(q, latents, latents[..., : s.rank], out, lse, table, used, scores, splits, s.width**-0.5, PAGE, is_mla=True)
        return out

    return Ready([partial(attend, c.unsqueeze(2), table) for c, table in cache], "vllm Triton")


def _decode_absorbed(b: KernelBench, s: Latents) -> Ready:
    """Two batched products and a softmax."""
    t = b.torch
    if s.kv_dtype:
        b.cpu_only("8-bit latents")
    kept = t.float8_e4m3fn if s.kv_dtype else t.bfloat16
    cache = b.copies(("latent rows", s), s.size, lambda: b.random(s.seqs, s.context, s.width, dtype=kept))
    q = b.random(s.seqs, s.heads, s.width)

    def attend(latents: Any) -> Any:
        latents = latents.to(t.bfloat16)
        scores = t.matmul(q, latents.transpose(1, 2)).mul_(s.width**-0.5)
        return t.matmul(t.softmax(scores, -1), latents[..., : s.rank])

    source = "torch, dequantised" if s.kv_dtype else "torch"
    return Ready([partial(attend, c) for c in cache], source, {"query": q, "latents": cache[0]})
