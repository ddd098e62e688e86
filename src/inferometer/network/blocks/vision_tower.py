"""Networks over patches: the vision tower of a vision-language model, and the blocks of a diffusion transformer.

A tower works on ``patches`` of all images of a step, its attention on ``patch_pairs`` (Σ patches² of each crop), its
projector on the ``image_tokens`` that are left. No text token multiplies by its weights, so none of them is active.
"""

from __future__ import annotations

import functools
from itertools import pairwise

import msgspec

from ...base.symbols import minimum, name
from ...base.symbols import names as s
from ..graph import Block, Part
from ..operators import Formula, Op, all_gather, all_reduce, attention, elementwise, embedding, linear, norm

ROLE = "vision"


def _linear(label: str, k: Formula, n: Formula, m: Formula, *, shard: str = "", bias: bool = True) -> Op:
    return linear(label, k, n, m=m, role=ROLE, shard=shard, bias=bias, shared=0, optional=True)


def patch_embed(
    *,
    hidden_size: int,
    patch_inputs: int,
    bias: bool = True,
    positions: int = 0,
    tables: int = 1,
    class_token: bool = False,
    pre_norm: bool = False,
    norm_bias: bool = True,
) -> Block:
    """Patches of ``patch_inputs`` values (channels × pixels × frames) to vectors, with learned ``positions``."""
    dims: dict[str, float] = {"hidden_size": hidden_size, "patch_inputs": patch_inputs, "num_positions": positions}
    h = s.hidden_size
    ops = [_linear("patch_embed", s.patch_inputs, h, s.patches, bias=bias)]
    if class_token:
        ops.append(embedding("class_embed", 1, h, m=s.images, shard=False, role=ROLE))
    if positions:
        rows = tables * s.num_positions  # one table for each axis, or one for both
        added = ("patch_embed", "class_embed") if class_token else ("patch_embed",)
        ops.append(embedding("pos_embed", rows, h, m=tables * s.patches, shard=False, role=ROLE, inputs=added))
    if pre_norm:
        ops.append(norm("pre_layernorm", h, m=s.patches, bias=norm_bias, shared=0))
    return Block("vision.patches", tuple(ops), dims, stage="vision", residual=False)


def encoder(
    *,
    hidden_size: int,
    intermediate_size: int,
    num_hidden_layers: int,
    num_attention_heads: int,
    attention_width: int = 0,
    gated: bool = False,
    bias: bool = True,
    mlp_bias: bool = True,
    norm_bias: bool = True,
    qk_norm: bool = False,
    sandwich: bool = False,
    rope: bool = False,
    class_token: bool = False,
    window: int = 0,
    full: frozenset[int] = frozenset(),
    unused: int = 0,
) -> tuple[Block, ...]:
    """The layers of a tower: every patch sees all of its crop, or ``window`` patches except in the ``full`` layers.

    ``attention_width`` = heads × head_dim where that is not the width; ``sandwich`` has norms also after attention and
    MLP; the last ``unused`` layers are stored but not run (their output is not what the projector takes).
    """
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_heads": num_attention_heads,
        "attention_width": attention_width or hidden_size,
        "window_patches": window,
    }
    layer = functools.partial(
        _encoder_layer,
        gated=gated,
        bias=bias,
        mlp_bias=mlp_bias,
        norm_bias=norm_bias,
        qk_norm=qk_norm,
        sandwich=sandwich,
        rope=rope,
        class_token=class_token,
    )
    pairs = s.patch_pairs + 2 * s.patches + s.images if class_token else s.patch_pairs
    run = range(num_hidden_layers - unused)
    near = tuple(i for i in run if window and i not in full)
    far = tuple(i for i in run if i not in near)
    blocks = []
    if near:
        local = layer(pairs=minimum(s.patches * s.window_patches, s.patch_pairs))
        blocks.append(Block("vision.window_layers", local, dims, near, stage="vision"))
    if far:
        blocks.append(Block("vision.layers", layer(pairs=pairs), dims, far, stage="vision"))
    if unused:
        weights = sum((op.work.params for op in layer(pairs=0)), start=0 * s.hidden_size)
        idle = msgspec.structs.replace(embedding("unused", weights, 1, m=0, shard=False, role=ROLE), calls=0)
        skipped = tuple(range(num_hidden_layers - unused, num_hidden_layers))
        blocks.append(Block("vision.unused_layers", (idle,), dims, skipped, stage="vision", residual=False))
    return tuple(blocks)


def _encoder_layer(
    *,
    pairs: Formula,
    gated: bool,
    bias: bool,
    mlp_bias: bool,
    norm_bias: bool,
    qk_norm: bool,
    sandwich: bool,
    rope: bool,
    class_token: bool,
) -> tuple[Op, ...]:
    """One layer of a tower, whose attention is over ``pairs`` of patches."""
    m = s.patches + s.images if class_token else s.patches
    h, heads = s.hidden_size, s.num_heads / s.tp
    head_dim = s.attention_width / s.num_heads
    inner = 2 * s.intermediate_size if gated else s.intermediate_size

    def normed(label: str, residual: bool = False) -> Op:
        return norm(label, h, m=m, residual=residual, bias=norm_bias, shared=0)

    ops = [normed("norm1", residual=True), _linear("qkv", h, 3 * s.attention_width, m, shard="column", bias=bias)]
    if qk_norm:
        ops.append(norm("qk_norm", head_dim, m=m, rows=2 * heads, params=2 * head_dim, shared=0))
    if rope:
        ops.append(elementwise("rope", 2 * s.attention_width / s.tp, m=m, flops=3))
    ops += [
        attention(
            "attention",
            "prefill",
            heads=heads,
            kv_heads=heads,
            qk_dim=head_dim,
            v_dim=head_dim,
            m=m,
            dense=pairs,
            seqs=s.images,
            causal=False,
            cached=False,
        ),
        _linear("proj", s.attention_width, h, m, shard="row", bias=bias),
        all_reduce("all_reduce", h, m=m),
        *([normed("post_attention_norm")] if sandwich else []),
        normed("norm2", residual=True),
        _linear("fc1", h, inner, m, shard="column", bias=mlp_bias),
        elementwise("act_fn", inner / s.tp, s.intermediate_size / s.tp, m=m, flops=5 if gated else 4),
        _linear("fc2", s.intermediate_size, h, m, shard="row", bias=mlp_bias),
        all_reduce("all_reduce", h, m=m),
        *([normed("post_mlp_norm")] if sandwich else []),
    ]
    return tuple(ops)


def projection(label: str, widths: dict[str, int], *, m: Formula, bias: bool = True) -> Part:
    """Linear layers from each named width to the next with activations between, split in pairs over the ranks.

    ``projection("projector", {"merged": 4608, "projector_hidden": 4608, "out_hidden_size": 4096}, m=s.image_tokens)``
    """
    steps = list(pairwise(name(word) for word in widths))
    ops: list[Op] = []
    for i, (k, n) in enumerate(steps):
        second, last = i % 2 == 1, i + 1 == len(steps)
        shard = "row" if second else ("" if last else "column")
        ops.append(_linear(f"{label}_fc{i + 1}", k, n, m, shard=shard, bias=bias))
        if second:
            ops.append(all_reduce("all_reduce", n, m=m))
        if not last:
            ops.append(elementwise(f"{label}_act{i + 1}", n if second else n / s.tp, m=m, flops=4))
    return Part(tuple(ops), dict(widths))


def dit_block(*, hidden_size: int, num_attention_heads: int, intermediate_size: int) -> Part:
    """A block of a diffusion transformer: attention and MLP between modulations that the time step conditions."""
    dims: dict[str, float] = {
        "hidden_size": hidden_size,
        "num_attention_heads": num_attention_heads,
        "intermediate_size": intermediate_size,
        "head_dim": hidden_size / num_attention_heads,
    }
    h = s.hidden_size
    heads = s.num_attention_heads / s.tp
    ops = [
        linear("adaLN_modulation", h, 6 * h, m=s.seqs, role="mlp", shard="column", bias=True, inputs=()),
        all_gather("all_gather", 6 * h, m=s.seqs),
        norm("norm1", h, residual=True, weightless=True, inputs=()),
        elementwise("modulate1", h, flops=2, inputs=("norm1", "adaLN_modulation")),
        linear("qkv_proj", h, 3 * h, role="attn", shard="column", bias=True),
        attention(
            "attention",
            "prefill",
            heads=heads,
            kv_heads=heads,
            qk_dim=s.head_dim,
            v_dim=s.head_dim,
            causal=False,
            cached=False,
        ),
        linear("o_proj", h, h, role="attn", shard="row", bias=True),
        all_reduce("all_reduce", h),
        norm("norm2", h, residual=True, weightless=True),
        elementwise("modulate2", h, flops=2, inputs=("norm2", "adaLN_modulation")),
        linear("fc1", h, s.intermediate_size, shard="column", bias=True),
        elementwise("act_fn", s.intermediate_size / s.tp, flops=8),
        linear("fc2", s.intermediate_size, h, shard="row", bias=True),
        all_reduce("all_reduce", h),
    ]
    return Part(tuple(ops), dims)
