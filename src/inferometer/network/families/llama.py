"""Llama and everything built like it: pre-norm decoder, rotary grouped-query attention, gated MLP or experts.

What distinguishes a relative (biases, norms on q and k …) are its `Traits`; `families/__init__.py` lists them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from ..blocks import gqa
from ..graph import Model, Part, Span
from .config import Config
from .decoder import decoder, feed_forward, heads, mtp, window_span, windows
from .vision import tower


class Traits(NamedTuple):
    """What a relative of Llama has differently: ``Traits(bias=True, out_bias=False)`` is Qwen2.

    Where a trait is None, the config says it.
    """

    bias: bool | None = None  # of q, k and v
    out_bias: bool | None = None  # of attention's output
    mlp_bias: bool | None = None
    qk_norm: str = ""  # as `blocks.gqa` has it
    qk_norm_key: str = ""  # the config's key without which there is no norm on q and k
    gated: bool = True
    norm_bias: bool = False
    norms: str = "before"  # where they stand: "before" attention and MLP, "after" them, or "both"
    rope: bool = True
    sinks: bool = False
    parallel: int = 0  # attention and MLP read the same input through so many norms (1 or 2); 0: one after the other
    pattern: int = 1  # every how many layers one sees the whole past, where a window is set
    learned: int | None = None  # learned position embeddings, with so many rows more than positions
    embed_norms: int = 0
    narrow: int = 0  # the embedding's width where it is not the network's
    final_norm: bool = True
    tied: bool = False  # whether a config that does not say so ties its head to its embedding
    head_bias: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    shared_gate: bool = False


def build_llama(config: Config, *, family: str = "llama", warnings: tuple[str, ...] = (), **traits: Any) -> Model:
    """``build_llama(Config({"model_type": "llama", "hidden_size": 4096, …}), bias=True)``; keywords as in `Traits`."""
    c, t = config.text, Traits(**traits)
    if t.qk_norm_key and not c.flag(t.qk_norm_key):
        t = t._replace(qk_norm="")
    if not c.flag("use_parallel_residual", "parallel_attn", default=True):
        t = t._replace(parallel=0)
    local = windows(c, t.pattern)
    rotary = c.items("no_rope_layers", c.layers) or [1] * c.layers  # SmolLM3: 1 means that the layer does rotate
    kinds = {(near, bool(turns)) for near, turns in zip(local, rotary, strict=False)}
    attention = {
        kind: _attention(c, t._replace(rope=t.rope and kind[1]), "window" if kind[0] else "") for kind in kinds
    }
    feed = _feed_forward(c, t)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", attention[local[index], bool(rotary[index])] + feed(index)

    positions = 0 if t.learned is None else c.size("max_position_embeddings", "n_positions", "n_ctx") + t.learned
    return decoder(
        config,
        layer,
        family=family,
        spans=window_span(c) if any(local) else {},
        norm_bias=t.norm_bias,
        tied=c.flag("tie_word_embeddings", default=t.tied),
        head_bias=t.head_bias,
        positions=positions,
        embed_norms=t.embed_norms,
        narrow=t.narrow,
        final_norm=t.final_norm,
        extras=mtp(c, layer(c.layers - 1)[1]),
        vision=tower(config),
        warnings=warnings,
    )


def _first_norm(t: Traits) -> str:
    return "" if t.norms == "after" else "input_layernorm"


def _attention(c: Config, t: Traits, span: str) -> Part:
    declared = c.flag("attention_bias", "add_qkv_bias", "qkv_bias", "use_qkv_bias")
    return gqa(
        **heads(c),
        bias=declared if t.bias is None else t.bias,
        out_bias=c.flag("attention_bias") if t.out_bias is None else t.out_bias,
        qk_norm=t.qk_norm,
        norm_bias=t.norm_bias,
        rope=t.rope,
        span=span,
        sinks=t.sinks,
        pre_norm=_first_norm(t),
        post_norm="" if t.norms == "before" else "post_attention_layernorm",
        reduce=not t.parallel,
        v_head_dim=c.size("v_head_dim", default=0, least=0),
    )


def _feed_forward(c: Config, t: Traits) -> Callable[[int], Part]:
    second = {"before": "post_attention_layernorm", "after": "", "both": "pre_feedforward_layernorm"}[t.norms]
    return feed_forward(
        c,
        gated=t.gated,
        bias=c.flag("mlp_bias") if t.mlp_bias is None else t.mlp_bias,
        norm_bias=t.norm_bias,
        router_bias=t.router_bias,
        expert_bias=t.expert_bias,
        shared_gate=t.shared_gate,
        pre_norm="" if t.parallel == 1 else second,
        post_norm="" if t.norms == "before" else "post_feedforward_layernorm",
        parallel=bool(t.parallel),
        inputs=(_first_norm(t),) if t.parallel == 1 else None,
    )


def build_llama4(config: Config, *, family: str = "llama4") -> Model:
    """Llama 4: three of four layers see only their own chunk of the past; experts of top 1 with a shared one.

    ``build_llama4(Config({"model_type": "llama4", "text_config": {"attention_chunk_size": 8192, …}, …}))``
    """
    c = config.text
    width = c.size("intermediate_size")
    step = c.size("no_rope_layer_interval", default=4)
    rotary = [bool(x) for x in c.items("no_rope_layers", c.layers)] or [(i + 1) % step != 0 for i in range(c.layers)]
    chunk = c.size("attention_chunk_size", default=0, least=0)
    bias = c.flag("attention_bias")
    near = gqa(
        **heads(c),
        bias=bias,
        out_bias=bias,
        qk_norm="plain" if c.flag("use_qk_norm") else "",
        span="chunk" if chunk else "",
    )
    full = gqa(**heads(c), bias=bias, out_bias=bias, rope=False)
    chosen = c.items("moe_layers")
    mixed = {"moe_layer_freq": [int(i in chosen) for i in range(c.layers)]} if chosen else {}
    feed = feed_forward(
        Config({**c.data, **mixed}, c.where),
        dense_width=c.size("intermediate_size_mlp", "intermediate_size"),
        shared_expert_intermediate_size=width,
    )

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (near if rotary[index] else full) + feed(index)

    return decoder(
        config, layer, family=family, spans={"chunk": Span("chunk", chunk)} if chunk else {}, vision=tower(config)
    )
