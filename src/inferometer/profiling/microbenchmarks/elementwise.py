"""Kernels that move more than they compute: norms, activations, rope, cache writes, look-ups, sampling, copies.

And what launching costs: empty kernels one by one from the host, and replayed as a CUDA graph.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

from ...base.units import ceil_div
from ..timer import REPLAYS
from .runner import KernelBench, Missing, Ready, case

PAGE = 16  # tokens a page of the cache
POSITIONS = 32768  # that the table of angles covers
TOP = 448.0  # the largest 8-bit float
COMPILING = 8.0  # s that compiling an operator may take


# ------------------------------------------------------------------ what an engine's compiler makes of small operators


def _added_norm(x: Any, residual: Any, weight: Any, rounded: Any) -> tuple[Any, ...]:
    whole = x.float() + residual.float()
    y = (whole * (whole.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).to(x.dtype) * weight
    return *_rounded(y, rounded), whole.to(x.dtype)


def _gated(x: Any, rounded: Any) -> tuple[Any, ...]:
    gate, up = x.chunk(2, -1)
    return _rounded((gate.float() * gate.float().sigmoid()).to(x.dtype) * up, rounded)


def _gated_norm(x: Any, gate: Any, weight: Any, groups: int) -> Any:
    whole = x * (gate.float() * gate.float().sigmoid())
    parts = whole.view(x.shape[0], groups, -1)
    return weight * (parts * (parts.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt()).view(x.shape).to(x.dtype)


def _rounded(y: Any, rounded: Any) -> tuple[Any, ...]:
    """To 8 bits with a scale for each row, in the pass that made it: as the engine's fp8 layers want their inputs."""
    if rounded is None:
        return (y,)
    scale = y.abs().amax(-1, keepdim=True).float().clamp(min=1e-6) / TOP
    return (y.float() * scale.reciprocal()).clamp(-TOP, TOP).to(rounded), scale


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    first, second = x.chunk(2, -1)
    return (first * cos - second * sin).flatten(1), (second * cos + first * sin).flatten(1)


def _rope(q: Any, k: Any, positions: Any, table: Any, head_dim: int) -> Any:
    cos, sin = table[positions][:, None].chunk(2, -1)
    return [_turned(x.view(x.shape[0], -1, head_dim), cos, sin) for x in (q, k)]


def _inductor(b: KernelBench, function: Callable[..., Any], constant: Any, rows: list[Any], cold: float) -> Ready:
    """The function as torch.compile makes it, for all sizes: an engine compiles these operators so by default."""
    if not b.gpu:
        raise Missing("operators are compiled for GPUs")
    run = b.compiled.setdefault(function.__name__, b.torch.compile(function, dynamic=True))
    calls = [partial(run, *tensors, constant) for tensors in rows]
    single = len(rows[0][0]) == 1  # one row is compiled on its own
    b.warm("inductor", (function.__name__, str(constant), single), COMPILING, calls[0])
    return Ready(calls, "inductor", cold=cold)


@case("norm")
def norm(b: KernelBench, *, dtype: str, m: int, n: int) -> Ready:
    """RMSNorm with the residual added in the same kernel; in fp8 its output rounded there, too."""
    t = b.torch
    weight = b.random(n)
    rounded = _eight_bits(b, dtype)

    def rows() -> list[Any]:
        return b.copies(("norm", m, n), m * n * 4, lambda: (b.random(m, n), b.random(m, n)))

    def inductor() -> Ready:
        return _inductor(b, _added_norm, rounded, [(*pair, weight) for pair in rows()], 4 * m * n)

    if rounded is not None:
        return b.first(inductor)

    def vllm() -> Ready:
        fused = b.vllm("_custom_ops:fused_add_rms_norm")
        return Ready([partial(fused, x, residual, weight, 1e-6) for x, residual in rows()], "vllm", cold=4 * m * n)

    def torch() -> Ready:
        def added(x: Any, residual: Any) -> Any:
            whole = x + residual
            return t.nn.functional.rms_norm(whole, (n,), weight, 1e-6), whole

        x, residual = rows()[0]
        inputs = {"x": x, "residual": residual, "weight": weight}
        return Ready([partial(added, *pair) for pair in rows()], "torch", inputs, 4 * m * n)

    return b.first(inductor, vllm, torch)


@case("gated_norm")
def gated_norm(b: KernelBench, *, dtype: str, m: int, n: int, groups: int = 1) -> Ready:
    """Mamba-2's RMSNorm of what a gate lets through, in ``groups`` parts of a row."""
    weight = b.random(n)
    rows = b.copies(("gated", m, n), m * n * 4, lambda: (b.random(m, n), b.random(m, n), weight))
    return b.first(lambda: _inductor(b, _gated_norm, groups, rows, 4 * m * n))


@case("activation")
def activation(b: KernelBench, *, dtype: str, m: int, n: int) -> Ready:
    """SiLU of one half times the other: n columns in, n/2 out; in fp8 rounded in the same pass."""
    t = b.torch
    rounded = _eight_bits(b, dtype)

    def rows() -> list[Any]:
        return b.copies(("act", m, n), m * n * 3, lambda: (b.random(m, n), b.random(m, n // 2)))

    def inductor() -> Ready:
        return _inductor(b, _gated, rounded, [(x,) for x, _ in rows()], 2 * m * n)

    if rounded is not None:
        return b.first(inductor)

    def vllm() -> Ready:
        b.vllm("_custom_ops:rms_norm")  # loads the library that has it
        return Ready([partial(t.ops._C.silu_and_mul, out, x) for x, out in rows()], "vllm", cold=2 * m * n)

    def torch() -> Ready:
        def gated(x: Any) -> Any:
            return t.nn.functional.silu(x[:, : n // 2]) * x[:, n // 2 :]

        return Ready([partial(gated, x) for x, _ in rows()], "torch", {"x": rows()[0][0]}, 2 * m * n)

    return b.first(inductor, vllm, torch)


def _eight_bits(b: KernelBench, dtype: str) -> Any:
    """The type that a pass rounds its output to, None if it does not: ``_eight_bits(bench, "bf16")``"""
    if dtype not in ("bf16", "fp8"):
        raise Missing(f"no operator that rounds to {dtype} is known")
    return b.torch.float8_e4m3fn if dtype == "fp8" else None


@case("rope")
def rope(b: KernelBench, *, dtype: str, m: int, heads: int, kv_heads: int, head_dim: int) -> Ready:
    """Queries and keys of m tokens turned by the angles of their positions, halves against each other."""
    t = b.torch
    positions = t.randint(0, POSITIONS, (m,), device=b.device)
    speed = 10000.0 ** -(t.arange(0, head_dim, 2, device=b.device).float() / head_dim)
    angles = t.arange(POSITIONS, device=b.device).float()[:, None] * speed
    table = t.cat((angles.cos(), angles.sin()), -1).to(t.bfloat16)
    cold = 2.0 * m * (heads + kv_heads) * head_dim

    def rows() -> list[Any]:
        widths = (heads * head_dim, kv_heads * head_dim)
        return b.copies(("rope", m, *widths), 2 * m * sum(widths), lambda: tuple(b.random(m, w) for w in widths))

    def inductor() -> Ready:
        return _inductor(b, _rope, head_dim, [(q, k, positions, table) for q, k in rows()], cold)

    def vllm() -> Ready:
        turn = b.vllm("_custom_ops:rotary_embedding")
        return Ready([partial(turn, positions, q, k, head_dim, table, True) for q, k in rows()], "vllm", cold=cold)

    def torch() -> Ready:
        def turned(x: Any, cos: Any, sin: Any) -> Any:
            first, second = x.view(m, -1, head_dim).chunk(2, -1)
            return t.cat((first * cos - second * sin, second * cos + first * sin), -1)

        def both(q: Any, k: Any) -> Any:
            cos, sin = table[positions][:, None].chunk(2, -1)
            return turned(q, cos, sin), turned(k, cos, sin)

        q, k = rows()[0]
        inputs = {"query": q, "key": k, "positions": positions}
        return Ready([partial(both, *pair) for pair in rows()], "torch", inputs, cold)

    return b.first(inductor, vllm, torch)


@case("kv_write")
def kv_write(b: KernelBench, *, dtype: str, m: int, kv_heads: int, head_dim: int) -> Ready:
    """Keys and values of m tokens into free places of the paged cache."""
    t = b.torch
    count = max(ceil_div(m, PAGE) * 4, 64)
    slots = t.randperm(count * PAGE, device=b.device)[:m]
    cold = 4.0 * m * kv_heads * head_dim

    def made() -> Any:
        new = tuple(b.random(m, kv_heads, head_dim) for _ in range(2))
        return new, tuple(b.random(count, PAGE, kv_heads, head_dim) for _ in range(2))

    def rows() -> list[Any]:
        return b.copies(("slots", m, kv_heads, head_dim), 4 * (m + count * PAGE) * kv_heads * head_dim, made)

    def vllm() -> Ready:
        write, one = b.vllm("_custom_ops:reshape_and_cache_flash"), t.ones(1, device=b.device)
        return Ready(
            [partial(write, *new, *cache, slots, "auto", one, one) for new, cache in rows()], "vllm", cold=cold
        )

    def torch() -> Ready:
        def write(new: Any, cache: Any) -> Any:
            for tensor, place in zip(new, cache, strict=True):
                place.view(-1, kv_heads, head_dim).index_copy_(0, slots, tensor)
            return cache

        new, _ = rows()[0]
        return Ready([partial(write, *pair) for pair in rows()], "torch", {"new": new, "slots": slots}, cold)

    return b.first(vllm, torch)


@case("embedding")
def embedding(b: KernelBench, *, dtype: str, m: int, n: int, rows: int) -> Ready:
    """m rows of a table of ``rows`` × n; others in each call, because a table does not fit a cache."""
    t = b.torch
    tables = b.copies(("table", n, rows), rows * n * 2, lambda: b.random(rows, n))
    chosen = [t.randint(0, rows, (m,), device=b.device) for _ in range(max(16, len(tables)))]
    look = t.nn.functional.embedding
    calls = [partial(look, ids, table) for ids, table in zip(chosen, cycle(tables), strict=False)]
    return Ready(calls, "torch", {"ids": chosen[0], "table": tables[0]})


@case("sampler")
def sampler(b: KernelBench, *, dtype: str, m: int, n: int, method: str = "") -> Ready:
    """Greedy sampling: logits to fp32, then the largest; by ``gumbel`` as vLLM's second model runner finds it."""
    t = b.torch
    rows = b.copies(("logits", m, n), m * n * 2, lambda: b.random(m, n))

    def largest(x: Any) -> Any:
        return x.to(t.float32).argmax(dim=-1)

    if not method:
        return Ready([partial(largest, x) for x in rows], "torch", {"x": rows[0]}, 2 * m * n)
    if method != "gumbel":
        raise Missing(f"no sampler by {method} is known")
    sample = b.vllm("v1.worker.gpu.sample.gumbel:gumbel_sample")
    places, seeds = t.arange(m, device=b.device, dtype=t.int32), t.arange(m, device=b.device)
    zeros = t.zeros(m, device=b.device)  # no temperature: no noise

    def noisy(x: Any) -> Any:
        copied = t.empty_like(x, dtype=t.float32).copy_(x)
        return sample(copied, places, zeros, seeds, seeds, apply_temperature=False)

    return b.first(lambda: Ready([partial(noisy, x) for x in rows], "vllm Triton", cold=2 * m * n))


@case("quantize")
def quantize(b: KernelBench, *, dtype: str, m: int, n: int, block: int = 0) -> Ready:
    """Activations to 8 bits, scales computed on the way: one for all, or for each ``block`` of a row; int8 per row."""
    t = b.torch
    if dtype not in ("fp8", "int8") or (block and (dtype == "int8" or n % block)):
        raise Missing(f"no activations in {dtype} by blocks of {block} are known")
    kind = t.float8_e4m3fn if dtype == "fp8" else t.int8
    top = float(t.finfo(kind).max if dtype == "fp8" else t.iinfo(kind).max)

    def rows() -> list[Any]:
        return b.copies(("quantize", m, n), m * n * 2, lambda: b.random(m, n))

    def vllm() -> Ready:
        if block:
            home = "model_executor.layers.quantization.utils.fp8_utils"
            calls = [partial(b.vllm(f"{home}:per_token_group_quant_fp8"), x, block) for x in rows()]
        else:
            word = "scaled_fp8_quant" if dtype == "fp8" else "scaled_int8_quant"
            calls = [partial(b.vllm(f"_custom_ops:{word}"), x) for x in rows()]
        return Ready(calls, "vllm", cold=2 * m * n)

    def torch() -> Ready:
        def scaled(x: Any) -> Any:
            groups = x.float().view(m, -1, block) if block else x.float()
            scale = groups.abs().amax() if dtype == "fp8" and not block else groups.abs().amax(-1, keepdim=True)
            scale = scale.clamp(min=1e-6) / top
            scaled_groups = groups / scale
            return (scaled_groups if dtype == "fp8" else scaled_groups.round()).clamp(-top, top).to(kind).view(
                m, n
            ), scale

        return Ready([partial(scaled, x) for x in rows()], "torch", {"x": rows()[0]}, 2 * m * n)

    return b.first(vllm, torch)


@case("copy")
def copy(b: KernelBench, *, dtype: str, bytes: int) -> Ready:
    """A copy inside the device: half of the bytes read, half written."""
    rows = b.copies(("copy", bytes), bytes, lambda: (b.random(bytes // 4), b.random(bytes // 4)))
    return Ready([partial(target.copy_, source) for source, target in rows], "torch", {"x": rows[0][0]}, bytes)


# ------------------------------------------------------------------ launches


@case("launch")
def launch(b: KernelBench, *, dtype: str, kernels: int) -> Ready:
    """Host seconds to launch an empty kernel, averaged over ``kernels`` of them in a row; the device is not awaited."""
    empty = _empty(b)

    def seconds() -> float:
        samples = []
        for _ in range(REPLAYS + 1):  # the first warms up
            b.wait()
            began = time.perf_counter()
            for _ in range(kernels):
                empty()
            samples.append((time.perf_counter() - began) / kernels)
        b.wait()
        return float(statistics.median(samples[1:]))

    return Ready([empty], "torch", own=seconds)


@case("graph_replay")
def graph_replay(b: KernelBench, *, dtype: str, kernels: int) -> Ready:
    """Device seconds of an empty kernel in a captured graph of ``kernels`` of them, launch of the graph included."""
    t = b.torch
    if not b.gpu:
        raise Missing("a CPU has no CUDA graphs")
    empty = _empty(b)

    def seconds() -> float:
        graph = t.cuda.CUDAGraph()
        empty()
        b.wait()
        with t.cuda.graph(graph):
            for _ in range(kernels):
                empty()
        graph.replay()
        samples = []
        for _ in range(REPLAYS):
            first, last = (t.cuda.Event(enable_timing=True) for _ in range(2))
            b.wait()
            first.record()
            graph.replay()
            last.record()
            b.wait()
            samples.append(first.elapsed_time(last) / 1e3 / kernels)
        return float(statistics.median(samples))

    return Ready([empty], "torch", own=seconds)


def _empty(b: KernelBench) -> Callable[[], object]:
    """A kernel that does nothing; on a CPU the smallest operator, which costs what calling costs."""
    if b.gpu:
        return partial(b.torch.cuda._sleep, 0)
    return b.torch.zeros(1).relu_  # type: ignore[no-any-return]
