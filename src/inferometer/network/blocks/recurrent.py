"""Mixers with a fixed-size state instead of a growing cache: gated delta nets (Qwen3-Next, Kimi), lightning attention
(MiniMax), Mamba 1 and 2, short convolutions (LFM2).
"""

from __future__ import annotations

import msgspec

from ...base.symbols import names as s
from ..graph import Part
from ..operators import (
    Cache,
    Formula,
    Op,
    all_reduce,
    chunk_scan,
    conv1d,
    elementwise,
    linear,
    local_kv_heads,
    norm,
    scan,
    state_update,
)

CHUNK = 64  # prompt tokens that the kernels of delta nets process as one matrix product


def _delta_rule(
    name: str,
    heads: Formula,
    key_dim: Formula,
    value_dim: Formula,
    *,
    width: Formula,
    history: Formula,
    params: Formula,
    inputs: tuple[str, ...],
    decay_per_head: bool = False,
) -> Op:
    """Per token and state element: decay 1, read by key 2, update 2, read by query 2.

    Inside a chunk of a prompt, per token: k·kᵀ, q·kᵀ and T·k over keys, T·v and A·v over values.
    """
    return scan(
        name,
        heads=heads,
        key_dim=key_dim,
        value_dim=value_dim,
        width=width,
        flops_per_state=7,
        conv_state=history,
        params=params,
        chunk=s.chunk_size,
        chunk_flops=heads * s.chunk_size * (6 * key_dim + 4 * value_dim),
        decay_per_head=decay_per_head,
        inputs=inputs,
    )


def _gated_norm(width: Formula, params: Formula, inputs: tuple[str, str]) -> Op:
    """Norm of the scan's output times an activation of the gate: two tensors in, one out."""
    return elementwise("gated_norm", 2 * width, width, flops=9, params=params, inputs=inputs)


def delta_net(
    *,
    hidden_size: int,
    linear_num_key_heads: int,
    linear_num_value_heads: int,
    linear_key_head_dim: int,
    linear_value_head_dim: int,
    linear_conv_kernel_dim: int,
    pre_norm: str = "input_layernorm",
) -> Part:
    """Gated delta net (Qwen3-Next, Qwen3.5): projections, a short convolution, a gated delta-rule scan, gated norm."""
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "linear_num_key_heads": linear_num_key_heads,
        "linear_num_value_heads": linear_num_value_heads,
        "linear_key_head_dim": linear_key_head_dim,
        "linear_value_head_dim": linear_value_head_dim,
        "linear_conv_kernel_dim": linear_conv_kernel_dim,
        "chunk_size": CHUNK,
    }
    keys = s.linear_num_key_heads * s.linear_key_head_dim
    values = s.linear_num_value_heads * s.linear_value_head_dim
    mixed = 2 * keys + values
    ops = (
        norm(pre_norm, s.hidden_size, residual=True),
        linear("in_proj_qkvz", s.hidden_size, mixed + values, role="attn", shard="column"),
        linear(
            "in_proj_ba", s.hidden_size, 2 * s.linear_num_value_heads, role="router", shard="column", inputs=(pre_norm,)
        ),
        elementwise(
            "conv1d",
            mixed / s.tp,
            flops=2 * s.linear_conv_kernel_dim,
            params=mixed * s.linear_conv_kernel_dim,
            inputs=("in_proj_qkvz",),
        ),
        _delta_rule(
            "linear_attention",
            s.linear_num_value_heads / s.tp,
            s.linear_key_head_dim,
            s.linear_value_head_dim,
            width=(mixed + 2 * s.linear_num_value_heads) / s.tp,
            history=mixed / s.tp * (s.linear_conv_kernel_dim - 1),
            params=2 * s.linear_num_value_heads,
            inputs=("conv1d", "in_proj_ba"),
            decay_per_head=True,
        ),
        _gated_norm(values / s.tp, s.linear_value_head_dim, ("linear_attention", "in_proj_qkvz")),
        linear("out_proj", values, s.hidden_size, role="attn", shard="row"),
        all_reduce("all_reduce", s.hidden_size),
    )
    return Part(ops, dims)


def kimi_delta(
    *,
    hidden_size: int,
    num_heads: int,
    head_dim: int,
    short_conv_kernel_size: int,
    full_gate: bool = False,
    pre_norm: str = "input_layernorm",
) -> Part:
    """Kimi delta attention: a delta net whose decay is per channel, from a low-rank projection.

    The output gate has a projection of full rank (Kimi-K3) or, like the decay, one of rank ``head_dim``.
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "num_heads": num_heads,
        "head_dim": head_dim,
        "short_conv_kernel_size": short_conv_kernel_size,
        "chunk_size": CHUNK,
    }
    width, source = s.num_heads * s.head_dim, (pre_norm,)
    mixed = 3 * width
    gate = (
        [linear("g_proj", s.hidden_size, width, role="attn", shard="column", inputs=source)]
        if full_gate
        else [
            linear("g_a_proj", s.hidden_size, s.head_dim, role="attn", inputs=source),
            linear("g_b_proj", s.head_dim, width, role="attn", shard="column"),
        ]
    )
    ops = (
        norm(pre_norm, s.hidden_size, residual=True),
        linear("qkv_proj", s.hidden_size, mixed, role="attn", shard="column"),
        elementwise(
            "conv1d", mixed / s.tp, flops=2 * s.short_conv_kernel_size, params=mixed * s.short_conv_kernel_size
        ),
        linear("f_a_proj", s.hidden_size, s.head_dim, role="attn", inputs=source),
        linear("f_b_proj", s.head_dim, width, role="attn", shard="column"),
        linear("b_proj", s.hidden_size, s.num_heads, role="router", shard="column", inputs=source),
        _delta_rule(
            "linear_attention",
            s.num_heads / s.tp,
            s.head_dim,
            s.head_dim,
            width=(mixed + width + s.num_heads) / s.tp,
            history=mixed / s.tp * (s.short_conv_kernel_size - 1),
            params=s.num_heads + width,
            inputs=("conv1d", "f_b_proj", "b_proj"),
        ),
        *gate,
        _gated_norm(width / s.tp, s.head_dim, ("linear_attention", gate[-1].name)),
        linear("o_proj", width, s.hidden_size, role="attn", shard="row"),
        all_reduce("all_reduce", s.hidden_size),
    )
    return Part(ops, dims)


def mamba(
    *,
    hidden_size: int,
    d_inner: int,
    state_size: int,
    time_step_rank: int,
    conv_kernel: int,
    conv_bias: bool = True,
    bias: bool = False,
    inner_norm: str = "",
    pre_norm: str = "norm",
) -> Part:
    """Mamba (1): every channel of ``d_inner`` has its own state of ``state_size``.

    Such a scan has no matrix product to use tensor cores with. ``inner_norm`` of B, C and dt: "" none, "plain" without
    weights (Falcon-Mamba), "weight" with them (Jamba).
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "d_inner": d_inner,
        "state_size": state_size,
        "time_step_rank": time_step_rank,
        "conv_kernel": conv_kernel,
    }
    inner, local = s.d_inner, s.d_inner / s.tp
    low = s.time_step_rank + 2 * s.state_size
    ops = [
        norm(pre_norm, s.hidden_size, residual=True),
        linear("in_proj", s.hidden_size, 2 * inner, role="attn", shard="column", bias=bias),
        elementwise("conv1d", local, flops=2 * s.conv_kernel, params=inner * (s.conv_kernel + int(conv_bias))),
        linear("x_proj", inner, low, role="attn", shard="row"),
        all_reduce("x_all_reduce", low),
    ]
    if inner_norm:
        ops.append(norm("bcdt_norm", low, weightless=inner_norm == "plain", inputs=("x_proj",)))
    ops += [
        linear("dt_proj", s.time_step_rank, inner, role="attn", shard="column", bias=True, inputs=("x_proj",)),
        # exp(dt·A) 2, decay 1, input 2, output 2
        scan(
            "ssm_scan",
            heads=local,
            key_dim=s.state_size,
            value_dim=1,
            width=3 * local + 2 * s.state_size,
            flops_per_state=7,
            conv_state=local * (s.conv_kernel - 1),
            params=inner * (s.state_size + 1),
            peak="vector_peak_flops",
            inputs=("conv1d", "x_proj", "dt_proj", "in_proj"),
        ),
        linear("out_proj", inner, s.hidden_size, role="attn", shard="row", bias=bias),
        all_reduce("all_reduce", s.hidden_size),
    ]
    return Part(tuple(ops), dims)


def mamba2(
    *,
    hidden_size: int,
    mamba_num_heads: int,
    mamba_head_dim: int,
    n_groups: int,
    ssm_state_size: int,
    conv_kernel: int,
    chunk_size: int = 256,
    conv_bias: bool = True,
    bias: bool = False,
    out_bias: bool | None = None,
    gated_norm: bool = True,
    pre_norm: str = "norm",
    inputs: tuple[str, ...] | None = None,
) -> Part:
    """Mamba-2: one wide projection (gate, x, B, C, dt), a short convolution, the state-space scan, gated norm.

    B and C are shared by the heads of a group; groups are replicated once there are more ranks than groups. Without
    ``gated_norm`` the gate alone scales the scan's output. Without a ``pre_norm`` it reads ``inputs``.
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "mamba_num_heads": mamba_num_heads,
        "mamba_head_dim": mamba_head_dim,
        "n_groups": n_groups,
        "ssm_state_size": ssm_state_size,
        "conv_kernel": conv_kernel,
        "chunk_size": chunk_size,
    }
    heads, inner = s.mamba_num_heads, s.mamba_num_heads * s.mamba_head_dim
    my_groups = local_kv_heads(s.n_groups)
    mixed = inner + 2 * s.n_groups * s.ssm_state_size
    local = inner / s.tp + 2 * my_groups * s.ssm_state_size
    gate = ("ssm_scan", "in_proj")
    ops = (
        *([norm(pre_norm, s.hidden_size, residual=True)] if pre_norm else []),
        linear(
            "in_proj",
            s.hidden_size,
            inner + mixed + heads,
            local=(inner + heads) / s.tp + local,
            role="attn",
            bias=bias,
            inputs=inputs,
        ),
        conv1d("conv1d", local, taps=s.conv_kernel, params=mixed * (s.conv_kernel + int(conv_bias))),
        *_ssd(local, my_groups),
        # a norm over groups of channels is two kernels that read all; over all channels it is one that reads them twice
        *([elementwise("gate_variance", 2 * inner / s.tp, my_groups, inputs=gate)] if gated_norm else []),
        _gated_norm(inner / s.tp, inner if gated_norm else 0, gate),
        linear("out_proj", inner, s.hidden_size, role="attn", shard="row", bias=bias if out_bias is None else out_bias),
        all_reduce("all_reduce", s.hidden_size),
    )
    return Part(ops, dims)


def _ssd(local: Formula, my_groups: Formula) -> tuple[Op, Op]:
    """The state-space part of Mamba-2, for prompts and for decoding sequences, behind ``local`` convolved channels."""
    heads, history = s.mamba_num_heads / s.tp, local * (s.conv_kernel - 1)
    names = ("conv1d", "in_proj")
    prompts = chunk_scan(
        "ssm_scan",
        heads=heads,
        key_dim=s.ssm_state_size,
        value_dim=s.mamba_head_dim,
        groups=my_groups,
        chunk=s.chunk_size,
        conv_state=history,
        params=3 * s.mamba_num_heads,
        inputs=names,
    )
    decoding = state_update(
        "ssm_scan",
        heads=heads,
        key_dim=s.ssm_state_size,
        value_dim=s.mamba_head_dim,
        groups=my_groups,
        conv_state=history,
        inputs=names,
    )
    return prompts, decoding


def lightning_attention(
    *,
    hidden_size: int,
    num_attention_heads: int,
    head_dim: int,
    block_size: int = 256,
    pre_norm: str = "input_layernorm",
) -> Part:
    """Lightning attention (MiniMax): a state of ``head_dim`` × ``head_dim`` a head that decays, then a gated norm.

    Prompts are computed in blocks of ``block_size``: q·kᵀ and its product with v inside, the state between them.
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "head_dim": head_dim,
        "block_size": block_size,
    }
    width = s.num_attention_heads * s.head_dim
    ops = (
        norm(pre_norm, s.hidden_size, residual=True),
        linear("qkv_proj", s.hidden_size, 3 * width, role="attn", shard="column"),
        elementwise("act_fn_qkv", 3 * width / s.tp, flops=4),
        # decay 1, update 2, read by query 2
        scan(
            "linear_attention",
            heads=s.num_attention_heads / s.tp,
            key_dim=s.head_dim,
            value_dim=s.head_dim,
            width=3 * width / s.tp,
            flops_per_state=5,
            chunk=s.block_size,
            chunk_flops=2 * s.block_size * (2 * width / s.tp),
        ),
        linear("output_gate", s.hidden_size, width, role="attn", shard="column", inputs=(pre_norm,)),
        _gated_norm(width / s.tp, width, ("linear_attention", "output_gate")),
        linear("out_proj", width, s.hidden_size, role="attn", shard="row"),
        all_reduce("all_reduce", s.hidden_size),
    )
    return Part(ops, dims)


def short_conv(*, hidden_size: int, conv_L_cache: int, bias: bool = False, pre_norm: str = "operator_norm") -> Part:
    """The short convolution of LFM2: over ``conv_L_cache`` tokens, between two gates that the same projection gives.

    All it keeps of the past is the convolution's last ``conv_L_cache`` - 1 inputs.
    """
    width = s.hidden_size / s.tp
    history = width * (s.conv_L_cache - 1) * s.act_bytes
    conv = elementwise(
        "conv1d",
        3 * width,
        width,
        flops=2 * s.conv_L_cache + 2,
        params=s.hidden_size * (s.conv_L_cache + int(bias)),
    )
    moved = msgspec.structs.replace(conv.work, kv_reads=s.seqs * history, kv_writes=s.seqs * history)
    ops = (
        norm(pre_norm, s.hidden_size, residual=True),
        linear("in_proj", s.hidden_size, 3 * s.hidden_size, role="attn", shard="column", bias=bias),
        msgspec.structs.replace(conv, work=moved, cache=Cache(0, history)),
        linear("out_proj", s.hidden_size, s.hidden_size, role="attn", shard="row", bias=bias),
        all_reduce("all_reduce", s.hidden_size),
    )
    return Part(ops, {"hidden_size": hidden_size, "conv_L_cache": conv_L_cache})
