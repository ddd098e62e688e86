"""Llama and everything built like it: pre-norm decoder, rotary grouped-query attention, gated MLP or experts.

The traits of a relative (biases, norms on q and k …) are keyword arguments; `models/__init__.py` lists who has which.
"""

from __future__ import annotations

from ..blocks import gqa
from ..graph import Model, Part
from .config import Config
from .decoder import decoder, feed_forward, heads, window_span, windows
from .deepseek_v3 import mtp
from .vision import tower


def build(
    config: Config,
    *,
    family: str = "llama",
    bias: bool | None = None,
    out_bias: bool | None = None,
    mlp_bias: bool | None = None,
    qk_norm: str = "",
    qk_norm_key: str = "",
    gated: bool = True,
    norm_bias: bool = False,
    norms: str = "before",
    rope: bool = True,
    sinks: bool = False,
    parallel: int = 0,
    pattern: int = 1,
    learned: int | None = None,
    embed_norms: int = 0,
    narrow: int = 0,
    final_norm: bool = True,
    tied: bool = False,
    head_bias: bool = False,
    router_bias: bool = False,
    expert_bias: bool = False,
    shared_gate: bool = False,
    warnings: tuple[str, ...] = (),
) -> Model:
    """``build(Config({"model_type": "llama", "hidden_size": 4096, …}))``

    ``norms`` stand "before" attention and MLP, "after" them or on "both" sides; ``qk_norm_key`` is the key that must
    ask for those on q and k. ``parallel``: attention and MLP read the same input through 1 or 2 norms. ``pattern``:
    every how many layers one sees the whole past, where a window is set. ``learned``: position embeddings, with so many
    rows more than positions. ``narrow``: the embedding's width where it is not the network's. ``tied``: what a silent
    config means.
    """
    c = config.text
    declared = c.flag("attention_bias", "add_qkv_bias", "qkv_bias", "use_qkv_bias")
    qkv_bias = declared if bias is None else bias
    o_bias = c.flag("attention_bias") if out_bias is None else out_bias
    local = windows(c, pattern)
    if qk_norm_key and not c.flag(qk_norm_key):
        qk_norm = ""
    if not c.flag("use_parallel_residual", "parallel_attn", default=True):
        parallel = 0
    first = "" if norms == "after" else "input_layernorm"
    second = {"before": "post_attention_layernorm", "after": "", "both": "pre_feedforward_layernorm"}[norms]
    attention = {
        span: gqa(
            **heads(c),
            bias=qkv_bias,
            out_bias=o_bias,
            qk_norm=qk_norm,
            norm_bias=norm_bias,
            rope=rope,
            span=span,
            sinks=sinks,
            pre_norm=first,
            post_norm="" if norms == "before" else "post_attention_layernorm",
            reduce=not parallel,
            v_head_dim=c.size("v_head_dim", default=0, least=0),
        )
        for span in ("", "window")
    }
    feed = feed_forward(
        c,
        gated=gated,
        bias=c.flag("mlp_bias") if mlp_bias is None else mlp_bias,
        norm_bias=norm_bias,
        router_bias=router_bias,
        expert_bias=expert_bias,
        shared_gate=shared_gate,
        pre_norm="" if parallel == 1 else second,
        post_norm="" if norms == "before" else "post_feedforward_layernorm",
        parallel=bool(parallel),
        inputs=(first,) if parallel == 1 else None,
    )

    def layer(index: int) -> tuple[str, Part]:
        return "layers", attention["window" if local[index] else ""] + feed(index)

    positions = 0 if learned is None else c.size("max_position_embeddings", "n_positions", "n_ctx") + learned
    return decoder(
        config,
        layer,
        family=family,
        spans=window_span(c) if any(local) else {},
        norm_bias=norm_bias,
        tied=c.flag("tie_word_embeddings", default=tied),
        head_bias=head_bias,
        positions=positions,
        embed_norms=embed_norms,
        narrow=narrow,
        final_norm=final_norm,
        extras=mtp(c, layer(c.layers - 1)[1]),
        vision=tower(config),
        warnings=warnings,
    )
