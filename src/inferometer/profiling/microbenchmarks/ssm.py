"""Layers that keep a state: Mamba-2's scan and update, the short convolution before them, gated delta nets.

Prompts go through chunks, decoding sequences through one update of their state; these are different kernels. They are
the engine's own (Triton), so without it there is nothing to time. What Triton chooses for a prompt it chooses once, at
one chunk, because that is how the engine warms it up; the choice is in the row's source.
"""

from __future__ import annotations

import contextlib
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

from ...base.units import ceil_div
from ...specs.catalog import precision
from ..timer import KernelCall
from .paged_attention import starts
from .runner import KernelBench, Missing, Ready, case

MAMBA = "model_executor.layers.mamba.ops"
SCAN = f"{MAMBA}.ssd_combined:mamba_chunk_scan_combined_varlen"
DELTA = "model_executor.layers.fla.ops"
TUNING = {"chunk_scan": 12.0, "gdn_prefill": 45.0}  # s that choosing blocks may take where compiled kernels are kept


class StateShape(NamedTuple):
    """The states of some sequences: ``StateShape(8, 128, 64, 128)`` are eight with 128 heads of 64 × 128 in bf16."""

    seqs: int
    heads: int
    value_dim: int
    key_dim: int
    groups: int = 1
    dtype: str = "bf16"

    @property
    def kept(self) -> float:
        """Bytes of all states."""
        return float(self.seqs * self.heads * self.value_dim * self.key_dim * precision(self.dtype).bytes)


def _cache(b: KernelBench, s: StateShape) -> Any:
    """The states of a layer; the first place belongs to no sequence."""
    kinds = {"bf16": b.torch.bfloat16, "fp32": b.torch.float32, "fp16": b.torch.float16}
    if s.dtype not in kinds:
        raise Missing(f"no state in {s.dtype} is known")
    return b.random(s.seqs + 1, s.heads, s.value_dim, s.key_dim, dtype=kinds[s.dtype])


def _caches(b: KernelBench, s: StateShape) -> list[Any]:
    """Such states of as many layers as no cache of the device holds."""
    return b.copies(("states", *s), s.kept, partial(_cache, b, s))


def _places(b: KernelBench, seqs: int) -> Any:
    return (b.torch.randperm(seqs, device=b.device) + 1).to(b.torch.int32)


def _blocks(b: KernelBench, **kernels: str) -> str:
    """What Triton chose: ``_blocks(b, scan="…:_chunk_scan_fwd_kernel")  # 'scan 64x64x32'``"""
    chosen = []
    for name, path in kernels.items():
        with contextlib.suppress(Exception):  # a Triton that keeps its choice elsewhere
            config = b.vllm(path).best_config
            chosen.append(f"{name} {'x'.join(str(size) for size in config.kwargs.values())}")
    return ", ".join(chosen)


# ------------------------------------------------------------------ Mamba-2


@case("state_update")
def state_update(
    b: KernelBench, *, dtype: str, seqs: int, heads: int, value_dim: int, key_dim: int, groups: int
) -> Ready:
    """One step of Mamba-2's recurrence for each sequence, in its place of the cache; ``dtype`` is the state's."""
    t = b.torch
    update = b.vllm(f"{MAMBA}.mamba_ssm:selective_state_update")
    shape = StateShape(seqs, heads, value_dim, key_dim, groups, dtype)
    caches, places = _caches(b, shape), _places(b, seqs)
    x, dt = b.random(seqs, heads, value_dim), b.random(seqs, heads)
    decay = -b.scales(heads)
    bias, skip = b.random(heads), b.random(heads)
    run = partial(
        update,
        x=x,
        dt=dt[:, :, None].expand(-1, -1, value_dim),
        A=decay[:, None, None].expand(-1, value_dim, key_dim),
        B=b.random(seqs, groups, key_dim),
        C=b.random(seqs, groups, key_dim),
        D=skip[:, None].expand(-1, value_dim),
        dt_bias=bias[:, None].expand(-1, value_dim),
        dt_softplus=True,
        state_batch_indices=places,
        dst_state_batch_indices=places,
        out=t.empty_like(x),
        is_blackwell=b.vllm("platforms:current_platform").is_device_capability_family(100),
    )
    ready = Ready([partial(run, cache) for cache in caches], "vllm Triton", cold=2 * shape.kept)
    return b.first(lambda: ready)


@case("chunk_scan")
def chunk_scan(
    b: KernelBench,
    *,
    dtype: str,
    m: int,
    seqs: int,
    heads: int,
    value_dim: int,
    key_dim: int,
    groups: int,
    chunk: int,
) -> Ready:
    """Mamba-2's scan of ``m`` tokens of prompts, and the last state of each into the cache, nothing being there before.

    ``dtype`` is the state's.
    """
    shape = StateShape(seqs, heads, value_dim, key_dim, groups, dtype)
    key, small = (heads, value_dim, key_dim, chunk, dtype), shape._replace(seqs=1)
    b.vllm(SCAN)  # before time is set aside for it
    b.warm("chunk_scan", key, TUNING["chunk_scan"], lambda: _scan(b, small, chunk, chunk)[0]())
    chosen = _blocks(
        b,
        state=f"{MAMBA}.ssd_chunk_state:_chunk_state_fwd_kernel",
        passing=f"{MAMBA}.ssd_state_passing:_state_passing_fwd_kernel",
        scan=f"{MAMBA}.ssd_chunk_scan:_chunk_scan_fwd_kernel",
    )
    return b.first(lambda: Ready(_scan(b, shape, m // seqs, chunk), f"vllm Triton {chosen}".strip()))


def _scan(b: KernelBench, s: StateShape, new: int, chunk: int) -> list[KernelCall]:
    t = b.torch
    scan = b.vllm(SCAN)
    tokens, each = new * s.seqs, ceil_div(new, chunk)
    pieces = [min(chunk, new - done) for _ in range(s.seqs) for done in range(0, new, chunk)]  # none has two sequences
    ends = [each * (i + 1) - 1 for i in range(s.seqs)]
    owners = [i // each for i in range(len(pieces))]
    last, owner = (t.tensor(x, device=b.device, dtype=t.int32) for x in (ends, owners))
    begins, chunks = starts(b, [new] * s.seqs), starts(b, pieces)
    decay, bias, skip, places = -b.scales(s.heads), b.random(s.heads), b.random(s.heads), _places(b, s.seqs).long()
    cache = _cache(b, s)

    def made() -> Any:
        rows = b.random(tokens, s.heads * s.value_dim + 2 * s.groups * s.key_dim)  # as the convolution leaves them
        return rows, b.random(tokens, s.heads), b.random(tokens, s.heads, s.value_dim)

    def run(rows: Any, dt: Any, out: Any) -> None:
        x, keys, queries = t.split(rows, [s.heads * s.value_dim, s.groups * s.key_dim, s.groups * s.key_dim], dim=-1)
        cache[places] = scan(
            x.view(tokens, s.heads, s.value_dim),
            dt,
            decay,
            keys.view(tokens, s.groups, s.key_dim),
            queries.view(tokens, s.groups, s.key_dim),
            chunk_size=chunk,
            cu_seqlens=begins,
            cu_chunk_seqlens=chunks,
            last_chunk_indices=last,
            seq_idx=owner,
            out=out,
            D=skip,
            dt_bias=bias,
            dt_softplus=True,
            state_dtype=cache.dtype,
        )

    width = 4 * s.heads * s.value_dim + 4 * s.groups * s.key_dim
    return [partial(run, *rows) for rows in b.copies(("scan", tokens, *s), tokens * width, made)]


# ------------------------------------------------------------------ the short convolution


def _convolution(b: KernelBench, seqs: int, channels: int, width: int) -> dict[str, Any]:
    """Weights and the history of each sequence, channels side by side as the engine keeps them."""
    history = b.random(seqs + 1, width - 1, channels).transpose(-1, -2)
    return {"weight": b.random(channels, width), "bias": b.random(channels), "activation": "silu", "history": history}


@case("conv1d")
def conv1d(b: KernelBench, *, dtype: str, m: int, seqs: int, n: int, k: int) -> Ready:
    """A causal convolution of ``n`` channels over ``k`` tokens, with SiLU: of prompts, or of one token a sequence."""
    return _conv_update(b, seqs, n, k) if m == seqs else _conv_prompts(b, seqs, m // seqs, n, k)


def _conv_prompts(b: KernelBench, seqs: int, new: int, channels: int, width: int) -> Ready:
    t = b.torch
    convolve = b.vllm(f"{MAMBA}.causal_conv1d:causal_conv1d_fn")
    plan = b.vllm("v1.attention.backends.utils:compute_causal_conv1d_metadata")
    begins, tokens = starts(b, [new] * seqs), seqs * new
    nums, batch, offset = plan(begins.cpu(), device=t.device(b.device))
    fixed = _convolution(b, seqs, channels, width)
    run = partial(
        convolve,
        weight=fixed["weight"],
        bias=fixed["bias"],
        activation=fixed["activation"],
        conv_states=fixed["history"],
        has_initial_state=t.zeros(seqs, device=b.device, dtype=t.bool),
        cache_indices=_places(b, seqs),
        metadata=SimpleNamespace(nums_dict=nums, batch_ptr=batch, token_chunk_offset_ptr=offset),
        query_start_loc=begins,
    )
    rows = b.copies(("conv", tokens, channels), 2 * tokens * channels, lambda: b.random(tokens, channels))
    ready = Ready([partial(run, x.transpose(0, 1)) for x in rows], "vllm Triton", cold=2 * tokens * channels)
    return b.first(lambda: ready)


def _conv_update(b: KernelBench, seqs: int, channels: int, width: int) -> Ready:
    """One token a sequence, which moves on in its history."""
    update = b.vllm(f"{MAMBA}.causal_conv1d:causal_conv1d_update")
    places = _places(b, seqs)

    def made() -> Any:
        return b.random(seqs, channels), _convolution(b, seqs, channels, width)

    def run(x: Any, fixed: dict[str, Any]) -> Any:
        return update(
            x, fixed["history"], fixed["weight"], fixed["bias"], fixed["activation"], conv_state_indices=places
        )

    rows = b.copies(("conv", seqs, channels, width), 2 * seqs * channels * width, made)
    ready = Ready([partial(run, *row) for row in rows], "vllm Triton", cold=2 * seqs * channels * width)
    return b.first(lambda: ready)


# ------------------------------------------------------------------ gated delta nets


@case("gdn_decode")
def gdn_decode(
    b: KernelBench,
    *,
    dtype: str,
    seqs: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> Ready:
    """One step of the gated delta rule for each sequence, queries, keys and values packed side by side."""
    t = b.torch
    update = b.vllm(f"{DELTA}:fused_recurrent_gated_delta_rule_packed_decode")
    shape = StateShape(seqs, value_heads, value_dim, key_dim, 1, dtype)
    caches, places = _caches(b, shape), _places(b, seqs)
    run = partial(
        update,
        mixed_qkv=b.random(seqs, 2 * key_heads * key_dim + value_heads * value_dim),
        a=b.random(seqs, value_heads),
        b=b.random(seqs, value_heads),
        A_log=b.scales(value_heads),
        dt_bias=b.random(value_heads),
        scale=key_dim**-0.5,
        out=t.empty(seqs, 1, value_heads, value_dim, device=b.device, dtype=t.bfloat16),
        ssm_state_indices=places,
        use_qk_l2norm_in_kernel=True,
    )
    ready = Ready([partial(run, initial_state=cache) for cache in caches], "vllm Triton", cold=2 * shape.kept)
    return b.first(lambda: ready)


@case("gdn_prefill")
def gdn_prefill(
    b: KernelBench,
    *,
    dtype: str,
    m: int,
    seqs: int,
    key_heads: int,
    value_heads: int,
    key_dim: int,
    value_dim: int,
) -> Ready:
    """The chunked gated delta rule over prompts, from what the convolution gives to the state in the cache."""
    shape = StateShape(seqs, value_heads, value_dim, key_dim, 1, dtype)
    chunk = int(b.vllm(f"{DELTA}.utils:FLA_CHUNK_SIZE"))
    key, small = (key_heads, value_heads, key_dim, value_dim, dtype), shape._replace(seqs=1)
    b.warm("gdn_prefill", key, TUNING["gdn_prefill"], lambda: _delta(b, small, key_heads, chunk, chunk)[0]())
    return b.first(lambda: Ready(_delta(b, shape, key_heads, m // seqs, chunk), "vllm Triton"))


def _delta(b: KernelBench, s: StateShape, key_heads: int, new: int, chunk: int) -> list[KernelCall]:
    prepare, rule = b.vllm(f"{DELTA}:fused_post_conv_prep"), b.vllm(f"{DELTA}:chunk_gated_delta_rule")
    begins, tokens = starts(b, [new] * s.seqs), new * s.seqs
    makers = [b.vllm(f"{DELTA}.index:prepare_chunk_{name}") for name in ("indices", "offsets")]
    plan = [make(begins.cpu(), chunk).to(b.device) for make in makers]
    decay, bias, cache, places = b.scales(s.heads), b.random(s.heads), _cache(b, s), _places(b, s.seqs).long()
    width = 2 * key_heads * s.key_dim + s.heads * s.value_dim

    def run(mixed: Any, gate: Any, strength: Any) -> None:
        q, k, v, g, beta = (
            x.unsqueeze(0) for x in prepare(mixed, gate, strength, decay, bias, key_heads, s.key_dim, s.value_dim)
        )
        _, final = rule(
            q=q,
            k=k,
            v=v,
            g=g,
            beta=beta,
            initial_state=cache[places],
            output_final_state=True,
            cu_seqlens=begins,
            chunk_indices=plan[0],
            chunk_offsets=plan[1],
            use_qk_l2norm_in_kernel=False,
        )
        cache[places] = final.to(cache.dtype)

    def made() -> Any:
        return b.random(tokens, width), b.random(tokens, s.heads), b.random(tokens, s.heads)

    return [partial(run, *rows) for rows in b.copies(("delta", tokens, *s), 2 * tokens * width, made)]
