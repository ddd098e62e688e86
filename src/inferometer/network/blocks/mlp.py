"""Feed-forward parts: dense MLPs, gated or not, and mixtures of experts."""

from __future__ import annotations

import msgspec

from ...base.symbols import names as s
from ..graph import Part
from ..operators import Formula, Op, all_reduce, all_to_all, elementwise, experts, linear, norm


def _two_layers(
    names: tuple[str, str, str],
    inner: Formula,
    *,
    role: str,
    gated: bool,
    bias: bool,
    inputs: tuple[str, ...] | None = None,
) -> list[Op]:
    """Up-projection (gate and up as one product), activation, down-projection."""
    up, act, down = names
    width = 2 * inner if gated else inner
    return [
        linear(up, s.hidden_size, width, role=role, shard="column", bias=bias, inputs=inputs),
        elementwise(act, width / s.tp, inner / s.tp, flops=5 if gated else 4),
        linear(down, inner, s.hidden_size, role=role, shard="row", bias=bias),
    ]


def mlp(
    *,
    hidden_size: int,
    intermediate_size: int,
    gated: bool = True,
    bias: bool = False,
    norm_bias: bool = False,
    pre_norm: str = "post_attention_layernorm",
    post_norm: str = "",
    reduce: bool = True,
    parallel: bool = False,
    inputs: tuple[str, ...] | None = None,
) -> Part:
    """A dense MLP: ``mlp(hidden_size=4096, intermediate_size=14336)``; not gated it is fc1, activation, fc2.

    A ``parallel`` one reads the layer's own input, as the attention does, and one all-reduce serves the sum of both.
    """
    names = ("gate_up_proj", "act_fn", "down_proj") if gated else ("fc1", "act_fn", "fc2")
    start = () if parallel else None
    ops = [norm(pre_norm, s.hidden_size, residual=not parallel, bias=norm_bias, inputs=start)] if pre_norm else []
    ops += _two_layers(names, s.intermediate_size, role="mlp", gated=gated, bias=bias, inputs=inputs)
    if parallel:
        ops.append(elementwise("add", 2 * s.hidden_size, s.hidden_size, inputs=("o_proj", names[2])))
    if reduce:
        ops.append(all_reduce("all_reduce", s.hidden_size))
    if post_norm:
        ops.append(norm(post_norm, s.hidden_size, residual=not pre_norm, bias=norm_bias))
    return Part(tuple(ops), {"hidden_size": hidden_size, "intermediate_size": intermediate_size})


def moe(
    *,
    hidden_size: int,
    moe_intermediate_size: int,
    num_experts: int,
    num_experts_per_tok: int,
    zero_expert_num: int = 0,
    shared_expert_intermediate_size: int = 0,
    shared_gate: bool = False,
    gated: bool = True,
    router_bias: bool = False,
    expert_bias: bool = False,
    moe_latent_size: int = 0,
    latent_norm: bool = False,
    pre_norm: str = "post_attention_layernorm",
    post_norm: str = "",
    inputs: tuple[str, ...] | None = None,
) -> Part:
    """Router, routed experts and shared experts (``shared_expert_intermediate_size`` is the width of all together).

    Latent experts work in ``moe_latent_size`` dimensions, reached by a projection down and back up. A router that
    also knows ``zero_expert_num`` experts which compute nothing leaves the others their share of a token's choices.
    Without a ``pre_norm`` all of them read ``inputs``.
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "moe_intermediate_size": moe_intermediate_size,
        "num_experts": num_experts,
        "num_experts_per_tok": num_experts_per_tok * num_experts / (num_experts + zero_expert_num),
    }
    ops = [norm(pre_norm, s.hidden_size, residual=True)] if pre_norm else []
    source = (pre_norm,) if pre_norm else inputs
    routed = s.num_experts + s.zero_expert_num if zero_expert_num else s.num_experts
    if zero_expert_num:
        dims["zero_expert_num"] = zero_expert_num
    ops.append(linear("router", s.hidden_size, routed, role="router", bias=router_bias, inputs=source))
    ops.append(elementwise("topk", routed, 2 * s.num_experts_per_tok, flops=routed))
    width, into = s.hidden_size, (*(source or ()), "topk")
    if moe_latent_size:
        dims["moe_latent_size"] = moe_latent_size
        width, into = s.moe_latent_size, ("latent_down_proj", "topk")
        ops.append(linear("latent_down_proj", s.hidden_size, width, role="shared", inputs=source))
    ops += _routed_experts(width, gated=gated, bias=expert_bias, inputs=into)
    if moe_latent_size:
        if latent_norm:
            ops.append(norm("latent_layernorm", width))
        ops.append(linear("latent_up_proj", width, s.hidden_size, role="shared"))
    shared = bool(shared_expert_intermediate_size)
    if shared:
        dims["shared_expert_intermediate_size"] = shared_expert_intermediate_size
        ops += _shared_experts(gated=gated, bias=expert_bias, gate=shared_gate, inputs=source)
    outputs = ("latent_up_proj" if moe_latent_size else "experts",) + (("shared_experts",) if shared else ())
    ops.append(all_reduce("all_reduce", s.hidden_size, inputs=outputs))
    if post_norm:
        ops.append(norm(post_norm, s.hidden_size, inputs=outputs))
    return Part(tuple(ops), dims)


def _routed_experts(width: Formula, *, gated: bool, bias: bool, inputs: tuple[str, ...]) -> list[Op]:
    """Dispatch to the ranks of the chosen experts, the experts, and back.

    A token goes once to every rank that holds one of its experts, and to all ranks where experts are sliced instead of
    spread (``gathered`` is 1). With k of the experts chosen evenly over n ranks, a rank holds none of them with
    probability (1 - 1/n)^k.
    """
    copies = s.a2a * (1 - (1 - 1 / s.a2a) ** s.num_experts_per_tok)
    rows = s.gathered * s.moe_tokens + (1 - s.gathered) * s.tokens / s.tp * copies
    return [
        all_to_all("dispatch", width, rows=rows, each=s.experts_input_bytes, ranks=s.a2a, inputs=inputs),
        experts(
            "experts",
            width,
            s.moe_intermediate_size,
            count=s.num_experts,
            top_k=s.num_experts_per_tok,
            gated=gated,
            bias=bias,
            inputs=inputs,
        ),
        all_to_all("combine", width, rows=rows, ranks=s.a2a),
    ]


def _shared_experts(*, gated: bool, bias: bool, gate: bool, inputs: tuple[str, ...] | None) -> list[Op]:
    """Experts that every token passes through, beside the routed ones; a ``gate`` scales what they add."""
    names = ("shared_experts", "shared_experts_act", "shared_experts")
    layers = _two_layers(names, s.shared_expert_intermediate_size, role="shared", gated=gated, bias=bias, inputs=inputs)
    ops = [msgspec.structs.replace(op, side_stream_of="experts") for op in layers]
    if gate:
        ops.append(linear("shared_expert_gate", s.hidden_size, 1, role="router", inputs=inputs))
    return ops
