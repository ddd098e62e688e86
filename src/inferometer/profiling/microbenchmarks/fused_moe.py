"""Routed experts: gate and up, activation, down, weighted sum, with even or skewed routing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any, NamedTuple

import msgspec

from ...specs.catalog import precision
from ..machine import optional_library
from .runner import KernelBench, Missing, Ready, case

BLOCK = 128  # weights along a side of a block that shares a scale
CHOICES = 8  # calls with another choice of experts each, where one call does not touch them all
MANY = 512  # tokens that touch them all


class Mixture(NamedTuple):
    """Experts of one rank, and the tokens that all ranks send them."""

    tokens: int
    hidden: int
    inner: int
    experts: int
    top_k: int
    skew: float
    ep: int

    @property
    def weights(self) -> float:
        """Numbers in the three matrices of all experts."""
        return 3.0 * self.experts * self.hidden * self.inner


@case("moe")
def moe(
    b: KernelBench,
    *,
    dtype: str,
    tokens: int,
    hidden: int,
    inner: int,
    experts: int,
    top_k: int,
    skew: float = 0.0,
    ep: int = 1,
) -> Ready:
    """The fused experts of one rank of ``ep``: tokens choose ``top_k`` of all ranks' experts, the others' fall away.

    With ``skew`` s the i-th most liked expert is chosen in proportion to 1/iˢ.
    """
    if dtype not in EXPERTS:
        raise Missing(f"no experts in {dtype} are known")
    shape = Mixture(tokens, hidden, inner, experts, top_k, skew, ep)
    ready = b.first(*(partial(attempt, b, shape) for attempt in EXPERTS[dtype]))
    least = shape.weights * top_k / experts * precision(dtype).bytes  # what one token alone would read
    return msgspec.structs.replace(ready, cold=least if ep == 1 and least * CHOICES > b.rotation else 0.0)


def logits(b: KernelBench, s: Mixture) -> list[Any]:
    """What a router says of each token, once or several times over: its largest choose the liked experts more often."""
    t = b.torch
    count = s.experts * s.ep
    liking = -s.skew * t.arange(1, count + 1, device=b.device).log()
    drawn = []
    for _ in range(CHOICES if s.tokens <= MANY else 1):
        chance = -t.empty(s.tokens, count, device=b.device).exponential_().log()  # the largest sums are such a choice
        drawn.append(chance + liking[t.randperm(count, device=b.device)])
    return drawn


def choices(b: KernelBench, s: Mixture) -> list[Any]:
    """Which experts each token chooses, once or several times over: distinct ones."""
    return [row.topk(s.top_k, dim=1).indices.to(b.torch.int32) for row in logits(b, s)]


def _shares(b: KernelBench, s: Mixture) -> Any:
    return b.torch.rand(s.tokens, s.top_k, device=b.device).softmax(-1)


def _pairs(b: KernelBench, s: Mixture, dtype: Any) -> list[Any]:
    """Sets of weights: gate and up (experts, 2·inner, hidden), down (experts, hidden, inner); sums keep unit size."""
    t = b.torch
    size = 1 if dtype == t.float8_e4m3fn else 2

    def made() -> Any:
        shapes = ((s.experts, 2 * s.inner, s.hidden), (s.experts, s.hidden, s.inner))
        return tuple(b.random(*shape).mul_(shape[-1] ** -0.5).to(dtype) for shape in shapes)

    return b.copies(("moe", dtype, s.experts, s.hidden, s.inner), s.weights * size, made)


def _rounds(choice: list[Any], pairs: list[Any]) -> list[tuple[Any, Any]]:
    """Another choice and another set of weights in each call, as many as the longer list has."""
    number = max(len(choice), len(pairs))
    return [pair for _, pair in zip(range(number), zip(cycle(choice), cycle(pairs)), strict=False)]


# ------------------------------------------------------------------ vLLM


def _vllm(b: KernelBench, s: Mixture, dtype: Any, **more: Any) -> Ready:
    t = b.torch
    fused = b.vllm("model_executor.layers.fused_moe.fused_moe:fused_experts_impl")
    x, pairs, shares = b.random(s.tokens, s.hidden), _pairs(b, s, dtype), _shares(b, s)
    if s.ep > 1:
        expert_map = t.full((s.experts * s.ep,), -1, device=b.device, dtype=t.int32)
        expert_map[: s.experts] = t.arange(s.experts, device=b.device, dtype=t.int32)
        more |= {"global_num_experts": s.experts * s.ep, "expert_map": expert_map}
    calls = [partial(fused, x, *pair, shares, ids, **more) for ids, pair in _rounds(choices(b, s), pairs)]
    return Ready(calls, "vllm Triton")


def _vllm_bf16(b: KernelBench, s: Mixture) -> Ready:
    return _vllm(b, s, b.torch.bfloat16)


def _vllm_fp8(b: KernelBench, s: Mixture) -> Ready:
    scales = {"w1_scale": b.scales(s.experts), "w2_scale": b.scales(s.experts)}
    return _vllm(b, s, b.torch.float8_e4m3fn, use_fp8_w8a8=True, **scales)


def _vllm_block(b: KernelBench, s: Mixture) -> Ready:
    up, down = _block_scales(b, s)
    return _vllm(b, s, b.torch.float8_e4m3fn, use_fp8_w8a8=True, block_shape=[BLOCK, BLOCK], w1_scale=up, w2_scale=down)


def _block_scales(b: KernelBench, s: Mixture) -> tuple[Any, Any]:
    if s.inner % BLOCK or s.hidden % BLOCK:
        raise Missing(f"block scales want multiples of {BLOCK}")
    inner, hidden = s.inner // BLOCK, s.hidden // BLOCK
    return b.scales(s.experts, 2 * inner, hidden), b.scales(s.experts, hidden, inner)


# ------------------------------------------------------------------ vLLM, 4-bit weights with a scale for 32 of them

OAI = "model_executor.layers.fused_moe.experts.gpt_oss_triton_kernels_moe"
SCALED = 32  # weights that share a scale
ONE = 127  # the scale 1: a power of two with this offset


def _vllm_mxfp4(b: KernelBench, s: Mixture) -> Ready:
    """Experts of gpt-oss as an engine with a real router runs them: routing from logits, then two products."""
    t = b.torch
    forward = b.vllm(f"{OAI}:triton_kernel_moe_forward")
    swizzle = b.vllm("model_executor.layers.quantization.utils.mxfp4_utils:_swizzle_mxfp4")
    config = b.vllm("model_executor.layers.fused_moe.config:mxfp4_w4a16_moe_quant_config")
    kernels = optional_library("triton_kernels.matmul_ogs")  # vLLM brings it, under this name
    if s.ep > 1 or s.hidden % SCALED or s.inner % 64:
        raise Missing(f"these experts want all ranks in one, hidden a multiple of {SCALED}, inner of 64")

    def packed(rows: int, columns: int) -> tuple[Any, Any, Any]:
        weight = b.random(s.experts, rows, columns // 2, dtype=t.uint8)
        scale = t.randint(ONE - 8, ONE, (s.experts, rows, columns // SCALED), device=b.device, dtype=t.uint8)
        weight, flex, scale = swizzle(weight, scale)
        settings = kernels.PrecisionConfig(weight_scale=scale, flex_ctx=kernels.FlexCtx(rhs_data=flex))
        return weight, settings, t.zeros(s.experts, rows, device=b.device)

    def made() -> Any:
        (up, up_scale, up_bias), (down, down_scale, down_bias) = (
            packed(2 * s.inner, s.hidden),
            packed(s.hidden, s.inner),
        )
        return up, down, config(up_scale, down_scale, w1_bias=up_bias, w2_bias=down_bias)

    pairs = b.copies(("mxfp4", s.experts, s.hidden, s.inner), s.weights * precision("mxfp4").bytes, made)
    x = b.random(s.tokens, s.hidden)
    rounds = _rounds([row.to(t.bfloat16) for row in logits(b, s)], pairs)
    calls = [
        partial(forward, x, up, down, row, topk=s.top_k, renormalize=True, quant_config=settings)
        for row, (up, down, settings) in rounds
    ]
    return Ready(calls, "vllm triton_kernels")


@case("moe_routing")
def moe_routing(b: KernelBench, *, dtype: str, tokens: int, experts: int, top_k: int, chosen: int = 0) -> Ready:
    """Which rows go to which expert, for experts of triton_kernels: from logits in one pass, or of ``chosen`` experts.

    The second is what an engine runs whose router is simulated or whose experts lie on several ranks.
    """
    t = b.torch
    shape = Mixture(tokens, 1, 1, experts, top_k, 0.0, 1)
    gather = b.vllm(f"{OAI}:make_routing_data")  # loads triton_kernels under its own name
    if chosen:
        shares = _shares(b, shape)
        return b.first(lambda: Ready([partial(gather, ids, shares, experts) for ids in choices(b, shape)], "vllm"))
    routing = optional_library("triton_kernels.routing").routing
    rows = [row.to(t.bfloat16) for row in logits(b, shape)]
    return b.first(lambda: Ready([partial(routing, row, top_k, sm_first=False) for row in rows], "triton_kernels"))


# ------------------------------------------------------------------ PyTorch


class TokenOrder(NamedTuple):
    """Tokens in the order of their experts."""

    ids: Any  # (tokens, top_k), experts of other ranks as the number after the last
    shares: Any


Grouped = Callable[[Any, Any, Any], Any]  # weights of all experts, rows in their order, where each one's rows end


def _sorted(b: KernelBench, s: Mixture, x: Any, product: Grouped, order: TokenOrder, up: Any, down: Any) -> Any:
    """Sort the tokens by expert, multiply group by group, and sum what each token is owed."""
    t = b.torch
    where = order.ids.flatten().argsort(stable=True)
    groups = order.ids.flatten()[where]
    last = t.arange(1, s.experts + 1, device=b.device, dtype=groups.dtype)
    ends = t.searchsorted(groups, last, out_int32=True)
    rows = product(up, x[where // s.top_k], ends)
    rows = t.nn.functional.silu(rows[:, : s.inner]) * rows[:, s.inner :]
    owed = product(down, rows, ends) * order.shares.flatten()[where, None].to(x.dtype)
    owed = owed.masked_fill((groups == s.experts)[:, None], 0.0)  # other ranks' rows were never computed
    return t.zeros_like(x).index_add_(0, where // s.top_k, owed)


def _torch(b: KernelBench, s: Mixture, product: Grouped, pairs: list[Any], source: str) -> Ready:
    x, shares = b.random(s.tokens, s.hidden), _shares(b, s)
    orders = [TokenOrder(ids.clamp(max=s.experts), shares) for ids in choices(b, s)]
    calls = [partial(_sorted, b, s, x, product, order, *pair) for order, pair in _rounds(orders, pairs)]
    inputs = {"x": x, "ids": orders[0].ids, "shares": shares, "up": pairs[0][0], "down": pairs[0][1]}
    return Ready(calls, source, inputs)


def _torch_bf16(b: KernelBench, s: Mixture) -> Ready:
    t = b.torch

    def product(w: Any, x: Any, ends: Any) -> Any:
        return t._grouped_mm(x, w.transpose(1, 2), offs=ends)

    return _torch(b, s, product, _pairs(b, s, t.bfloat16), "torch grouped_mm")


def _torch_fp8(b: KernelBench, s: Mixture) -> Ready:
    """Rows and columns with a scale each, computed on the way for the rows."""
    t = b.torch
    if not b.gpu:
        raise Missing("grouped 8-bit products are for GPUs")
    top = t.finfo(t.float8_e4m3fn).max
    pairs = [tuple((w, b.scales(*w.shape[:2])) for w in pair) for pair in _pairs(b, s, t.float8_e4m3fn)]

    def product(weights: Any, x: Any, ends: Any) -> Any:
        w, scale = weights
        sx = x.abs().amax(-1).float().clamp(min=1e-6) / top
        x8 = (x / sx[:, None]).to(t.float8_e4m3fn)
        return t._scaled_grouped_mm(
            x8, w.transpose(1, 2), sx, scale, offs=ends, out_dtype=t.bfloat16, use_fast_accum=True
        )

    return _torch(b, s, product, pairs, "torch scaled_grouped_mm")


def _plain_fp8(b: KernelBench, s: Mixture) -> Ready:
    return _plain(b, s, b.scales(s.experts, 1, 1), b.scales(s.experts, 1, 1))


def _plain_block(b: KernelBench, s: Mixture) -> Ready:
    up, down = (x.repeat_interleave(BLOCK, 1).repeat_interleave(BLOCK, 2) for x in _block_scales(b, s))
    return _plain(b, s, up, down)


def _plain(b: KernelBench, s: Mixture, *scales: Any) -> Ready:
    b.cpu_only("8-bit experts")
    t = b.torch
    pairs = [tuple(zip(pair, scales, strict=True)) for pair in _pairs(b, s, t.float8_e4m3fn)]

    def product(weights: Any, x: Any, ends: Any) -> Any:
        w, scale = weights
        return t._grouped_mm(x, (w.float() * scale).to(t.bfloat16).transpose(1, 2), offs=ends)

    return _torch(b, s, product, pairs, "torch grouped_mm, dequantised")


# Kernels by precision, the one that an engine would choose first.
EXPERTS = {
    "bf16": (_vllm_bf16, _torch_bf16),
    "fp8": (_vllm_fp8, _torch_fp8, _plain_fp8),
    "fp8-block": (_vllm_block, _plain_block),
    "mxfp4": (_vllm_mxfp4,),
}
