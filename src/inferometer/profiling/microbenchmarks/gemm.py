"""Matrix products in every precision that the libraries multiply in."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from ...base.units import ceil_div
from ...specs.catalog import precision
from .runner import KernelBench, Missing, Ready, case

BLOCK = 128  # weights along a side of a block that shares a scale, and in a group of 4-bit weights


@case("linear")
def linear(b: KernelBench, *, dtype: str, m: int, n: int, k: int) -> Ready:
    """A product of m rows with an n × k weight; inputs are quantised already, which is the kind ``quantize``."""
    if dtype not in PRODUCTS:
        raise Missing(f"no product in {dtype} is known")
    ready = b.first(*(partial(attempt, b, m, n, k) for attempt in PRODUCTS[dtype]))
    return msgspec.structs.replace(ready, cold=n * k * precision(dtype).bytes)


def _bf16(b: KernelBench, m: int, n: int, k: int) -> Ready:
    return _plain(b, m, n, k, b.torch.bfloat16)


def _fp16(b: KernelBench, m: int, n: int, k: int) -> Ready:
    return _plain(b, m, n, k, b.torch.float16)


def _plain(b: KernelBench, m: int, n: int, k: int, dtype: Any) -> Ready:
    x = b.random(m, k, dtype=dtype)
    weights = b.copies(("linear", dtype, n, k), n * k * 2, lambda: b.random(n, k, dtype=dtype))
    product = b.torch.nn.functional.linear
    return Ready([partial(product, x, w) for w in weights], "torch", {"x": x, "weight": weights[0]})


# ------------------------------------------------------------------ 8-bit floats and integers


def _fp8(b: KernelBench, m: int, n: int, k: int) -> tuple[Any, list[Any], Any, Any]:
    """Inputs, weights and one scale each."""
    t = b.torch
    if n % 16 or k % 16:
        raise Missing("8-bit products want multiples of 16")
    weights = b.copies(("fp8", n, k), n * k, lambda: b.random(n, k, dtype=t.float8_e4m3fn))
    return b.random(m, k, dtype=t.float8_e4m3fn), weights, b.scales(1), b.scales(1)


def _fp8_vllm(b: KernelBench, m: int, n: int, k: int) -> Ready:
    product = b.vllm("_custom_ops:cutlass_scaled_mm")
    x, weights, sx, sw = _fp8(b, m, n, k)
    return Ready([partial(product, x, w.t(), sx, sw, b.torch.bfloat16) for w in weights], "vllm CUTLASS")


def _fp8_torch(b: KernelBench, m: int, n: int, k: int) -> Ready:
    t = b.torch
    x, weights, sx, sw = _fp8(b, m, n, k)
    calls = [partial(t._scaled_mm, x, w.t(), sx, sw, out_dtype=t.bfloat16) for w in weights]
    return Ready(calls, "torch", {"x": x, "weight": weights[0], "scale": sx * sw})


def _int8(b: KernelBench, m: int, n: int, k: int) -> tuple[Any, list[Any]]:
    t = b.torch
    if n % 16 or k % 16:
        raise Missing("8-bit products want multiples of 16")
    weights = b.copies(("int8", n, k), n * k, lambda: b.random(n, k, dtype=t.int8))
    return b.random(m, k, dtype=t.int8), weights


def _int8_vllm(b: KernelBench, m: int, n: int, k: int) -> Ready:
    product = b.vllm("_custom_ops:cutlass_scaled_mm")
    x, weights = _int8(b, m, n, k)
    sx, sw = b.scales(m, 1), b.scales(n, 1)  # one a token, one a channel
    return Ready([partial(product, x, w.t(), sx, sw, b.torch.bfloat16) for w in weights], "vllm CUTLASS")


def _int8_torch(b: KernelBench, m: int, n: int, k: int) -> Ready:
    t = b.torch
    rows = max(m, 32) if b.gpu else m  # cuBLAS takes no fewer than 17
    x, weights = _int8(b, rows, n, k)
    scale = b.scales(1, n, dtype=t.bfloat16)

    def product(w: Any) -> Any:
        return t._int_mm(x, w.t())[:m] * scale

    source = "torch" if rows == m else f"torch, {rows} rows"
    return Ready([partial(product, w) for w in weights], source, {"x": x[:m], "weight": weights[0], "scale": scale})


# ------------------------------------------------------------------ 8-bit floats with a scale a block


def _block(b: KernelBench, m: int, n: int, k: int) -> tuple[Any, list[Any], Any, Any]:
    """Inputs with a scale per 1 × 128, weights with one per 128 × 128; scales as the libraries lay them out."""
    t = b.torch
    if n % BLOCK or k % BLOCK:
        raise Missing(f"block scales want multiples of {BLOCK}")
    weights = b.copies(("fp8", n, k), n * k, lambda: b.random(n, k, dtype=t.float8_e4m3fn))
    across, down = k // BLOCK, n // BLOCK
    sx = b.scales(across, m).t()  # token after token in memory
    return b.random(m, k, dtype=t.float8_e4m3fn), weights, sx, b.scales(down, across)


def _block_deepgemm(b: KernelBench, m: int, n: int, k: int) -> Ready:
    t = b.torch
    if not b.vllm("utils.deep_gemm:is_deep_gemm_supported")():
        raise Missing("DeepGEMM is for Hopper and Blackwell")
    rounded = b.vllm("utils.deep_gemm:is_deep_gemm_e8m0_used")()
    product = b.vllm("utils.deep_gemm:fp8_gemm_nt")
    ready = b.vllm("model_executor.layers.quantization.utils.fp8_utils:deepgemm_post_process_fp8_weight_block")
    quantise = b.vllm("model_executor.layers.quantization.utils.fp8_utils:per_token_group_quant_fp8")
    _, weights, _, sw = _block(b, m, n, k)
    x = quantise(b.random(m, k), BLOCK, column_major_scales=True, tma_aligned_scales=True, use_ue8m0=rounded)
    out = t.empty(m, n, device=b.device, dtype=t.bfloat16)
    calls = []
    for w in weights:
        made = ready(wq=w.clone(), ws=sw.clone(), quant_block_shape=(BLOCK, BLOCK), use_e8m0=rounded)
        calls.append(partial(product, x, made, out, is_deep_gemm_e8m0_used=rounded))
    return Ready(calls, "vllm DeepGEMM")


def _block_cutlass(b: KernelBench, m: int, n: int, k: int) -> Ready:
    product = b.vllm("_custom_ops:cutlass_scaled_mm")
    x, weights, sx, sw = _block(b, m, n, k)
    return Ready([partial(product, x, w.t(), sx, sw.t(), b.torch.bfloat16) for w in weights], "vllm CUTLASS")


def _block_triton(b: KernelBench, m: int, n: int, k: int) -> Ready:
    product = b.vllm("model_executor.layers.quantization.utils.fp8_utils:w8a8_triton_block_scaled_mm")
    x, weights, sx, sw = _block(b, m, n, k)
    calls = [partial(product, x, w, sx, sw, [BLOCK, BLOCK], b.torch.bfloat16) for w in weights]
    return Ready(calls, "vllm Triton")


def _block_torch(b: KernelBench, m: int, n: int, k: int) -> Ready:
    t = b.torch
    if not b.gpu:
        raise Missing("cuBLAS is for GPUs")
    x, weights, sx, sw = _block(b, m, n, k)
    down, across = sw.shape
    wide = t.zeros(down, ceil_div(across, 4) * 4, device=b.device)  # rows of scales start at multiples of 16 bytes
    wide[:, :across] = sw
    laid = wide[:, :across].t()
    return Ready([partial(t._scaled_mm, x, w.t(), sx, laid, out_dtype=t.bfloat16) for w in weights], "torch")


def _block_plain(b: KernelBench, m: int, n: int, k: int) -> Ready:
    b.cpu_only("block scales")
    t = b.torch
    x, weights, sx, sw = _block(b, m, n, k)

    def product(w: Any) -> Any:
        wide = w.float() * sw.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return ((x.float() * sx.repeat_interleave(BLOCK, 1)) @ wide.t()).to(t.bfloat16)

    inputs = {"x": x, "weight": weights[0], "x_scale": sx, "weight_scale": sw}
    return Ready([partial(product, w) for w in weights], "torch, dequantised", inputs)


# ------------------------------------------------------------------ 4- and 8-bit weights, 16-bit inputs


def _grouped(n: int, k: int) -> None:
    if n % 64 or k % BLOCK:
        raise Missing(f"packed weights want n in multiples of 64 and k of {BLOCK}")


def _w4_machete(b: KernelBench, m: int, n: int, k: int) -> Ready:
    t = b.torch
    pack, product = b.vllm("_custom_ops:machete_prepack_B"), b.vllm("_custom_ops:machete_mm")
    kind = b.vllm("scalar_type:scalar_types").uint4b8
    if t.cuda.get_device_capability() != (9, 0):
        raise Missing("Machete is for Hopper")
    _grouped(n, k)

    def made() -> Any:
        bits = b.random(k // 8, n, dtype=t.int32).t().contiguous().t()
        return pack(bits, a_type=t.bfloat16, b_type=kind, group_scales_type=t.bfloat16)

    weights = b.copies(("machete", n, k), n * k / 2, made)
    x, scales = b.random(m, k), b.scales(k // BLOCK, n, dtype=t.bfloat16)
    run = partial(product, a=x, b_type=kind, b_group_scales=scales, b_group_size=BLOCK)
    return Ready([partial(run, b_q=w) for w in weights], "vllm Machete")


def _marlin(b: KernelBench, m: int, n: int, k: int, bits: int) -> Ready:
    t = b.torch
    home = "model_executor.layers.quantization.utils.marlin_utils"
    product, nothing = b.vllm(f"{home}:apply_gptq_marlin_linear"), b.vllm(f"{home}:marlin_make_empty_g_idx")
    room, kinds = b.vllm(f"{home}:marlin_make_workspace_new"), b.vllm("scalar_type:scalar_types")
    _grouped(n, k)
    device = t.device(b.device, t.cuda.current_device()) if b.gpu else t.device(b.device)
    weights = b.copies(
        (f"marlin {bits}", n, k), n * k * bits / 8, lambda: b.random(k // 16, n * bits // 2, dtype=t.int32)
    )
    x, scales, empty = b.random(m, k), b.scales(k // BLOCK, n, dtype=t.bfloat16), nothing(device)
    run = partial(
        product,
        x,
        weight_scale=scales,
        weight_zp=empty,
        g_idx=empty,
        g_idx_sort_indices=empty,
        workspace=room(device),
        wtype=kinds.uint4b8 if bits == 4 else kinds.uint8b128,
        output_size_per_partition=n,
        input_size_per_partition=k,
        is_k_full=True,
    )
    return Ready([partial(run, weight=w) for w in weights], "vllm Marlin")


def _w4_marlin(b: KernelBench, m: int, n: int, k: int) -> Ready:
    return _marlin(b, m, n, k, 4)


def _w8_marlin(b: KernelBench, m: int, n: int, k: int) -> Ready:
    return _marlin(b, m, n, k, 8)


def _w4_torch(b: KernelBench, m: int, n: int, k: int) -> Ready:
    """Groups of 128 with a scale and an offset each; a nibble q stands for (q - 8)·scale + offset."""
    t = b.torch
    _grouped(n, k)

    def made() -> Any:
        nibbles = t.randint(0, 16, (n, k), device=b.device, dtype=t.int32)
        if not b.gpu:
            return t._convert_weight_to_int4pack_for_cpu(nibbles, 1), nibbles
        pairs = (nibbles[:, ::2] << 4 | nibbles[:, 1::2]).to(t.uint8)
        return t._convert_weight_to_int4pack(pairs, 8), None

    weights = b.copies(("int4pack", n, k), n * k / 2, made)
    x, scales = b.random(m, k), b.scales(k // BLOCK, n, 2, dtype=t.bfloat16)
    product = t._weight_int4pack_mm if b.gpu else t._weight_int4pack_mm_for_cpu
    inputs = {"x": x, "weight": weights[0][1], "scale": scales}
    return Ready([partial(product, x, w, BLOCK, scales) for w, _ in weights], "torch", inputs)


def _w8_torch(b: KernelBench, m: int, n: int, k: int) -> Ready:
    t = b.torch
    weights = b.copies(("int8", n, k), n * k, lambda: b.random(n, k, dtype=t.int8))
    x, scale = b.random(m, k), b.scales(n, dtype=t.bfloat16)
    calls = [partial(t._weight_int8pack_mm, x, w, scale) for w in weights]
    return Ready(calls, "torch", {"x": x, "weight": weights[0], "scale": scale})


# Kernels by precision, the one that an engine would choose first.
PRODUCTS = {
    "bf16": (_bf16,),
    "fp16": (_fp16,),
    "fp8": (_fp8_vllm, _fp8_torch),
    "fp8-block": (_block_deepgemm, _block_cutlass, _block_triton, _block_torch, _block_plain),
    "int8": (_int8_vllm, _int8_torch),
    "w4a16": (_w4_machete, _w4_marlin, _w4_torch),
    "w8a16": (_w8_marlin, _w8_torch),
}
