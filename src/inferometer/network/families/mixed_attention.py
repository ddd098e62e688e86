"""Decoders of experts with two kinds of attention layers: MiniMax-M3, MiMo-V2-Flash, Step-3.5 and 3.7."""

from __future__ import annotations

from typing import Any

from ...base.symbols import names as s
from ..blocks import block_indexer, gqa, mlp
from ..graph import Model, Part, Span
from ..operators import elementwise, linear
from .config import Config
from .decoder import decoder, feed_forward, heads, mtp, window_span, windows
from .vision import tower

_NORM = "input_layernorm"


def build_minimax_m3(config: Config, *, family: str = "minimax_m3") -> Model:
    """MiniMax-M3: most layers attend to the best blocks of the past, which a small index beside the keys chooses.

    ``build_minimax_m3(Config({"model_type": "minimax_m3", "sparse_attention_config": {…}, …}))``
    """
    c = config.text
    section = c.section("sparse_attention_config")
    sparsity = section if section is not None and section.flag("use_sparse_attention", default=True) else None
    sizes = heads(c)
    sizes |= {"qk_norm": "head" if c.flag("use_qk_norm") else "", "output_gate": c.flag("attention_output_gate")}
    dense = gqa(**sizes)
    sparse, chosen, spans = dense, [False] * c.layers, {}
    if sparsity is not None:
        block = sparsity.size("sparse_block_size", "index_block_size")
        index = block_indexer(
            hidden_size=c.size("hidden_size"),
            sparse_num_index_heads=sparsity.size("sparse_num_index_heads", "index_n_heads"),
            sparse_index_dim=sparsity.size("sparse_index_dim", "index_head_dim"),
            sparse_block_size=block,
        )
        sparse = gqa(**sizes, span="top_k", index=index)
        chosen = [bool(x) for x in sparsity.items("sparse_attention_freq", c.layers)] or [True] * c.layers
        spans["top_k"] = Span("top_k", block * sparsity.size("sparse_topk_blocks", "index_topk_blocks"))
    feed = feed_forward(
        c, dense_width=c.size("dense_intermediate_size", "intermediate_size"), router_bias=c.flag("use_routing_bias")
    )

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (sparse if chosen[index] else dense) + feed(index)

    return decoder(
        config, layer, family=family, spans=spans, extras=mtp(c, layer(c.layers - 1)[1]), vision=tower(config)
    )


def build_mimo_v2_flash(config: Config, *, family: str = "mimo_v2_flash") -> Model:
    """MiMo-V2-Flash: sliding layers with sinks and heads of their own between full ones, values narrower than keys.

    ``build_mimo_v2_flash(Config({"model_type": "mimo_v2_flash", "hybrid_layer_pattern": [0, 1, …], …}))``
    """
    c = config.text
    full = heads(c)
    full["v_head_dim"] = c.size("v_head_dim", default=full["head_dim"])
    sliding: dict[str, Any] = {key: c.size(f"swa_{key}", default=size) for key, size in full.items()}
    local = [bool(x) for x in c.items("hybrid_layer_pattern", c.layers)] or [False] * c.layers
    bias = c.flag("attention_bias")
    attention = {
        False: gqa(**full, bias=bias, sinks=c.flag("add_full_attention_sink_bias")),
        True: gqa(**sliding, bias=bias, sinks=c.flag("add_swa_attention_sink_bias"), span="window"),
    }
    feed = feed_forward(c, router_bias=c.get("topk_method") == "noaux_tc")

    def layer(index: int) -> tuple[str, Part]:
        return "layers", attention[local[index]] + feed(index)

    return decoder(
        config, layer, family=family, spans=window_span(c) if any(local) else {}, extras=mtp(c, layer(c.layers - 1)[1])
    )


def build_step3p7(config: Config, *, family: str = "step3p7") -> Model:
    """Step-3.5 and Step-3.7: full and sliding layers, which may differ in heads, and experts with a shared one.

    ``build_step3p7(Config({"model_type": "step3p7", "num_attention_groups": 8, "attention_other_setting": {…}, …}))``
    """
    c = config.text
    local = windows(c)
    other = c.section("attention_other_setting")
    full, sliding = heads(c), heads(Config({**c.data, **other.data}, other.where) if other else c)
    gated = c.flag("use_head_wise_attn_gate")
    attention = {"": _gated_attention(full, "", gated), "window": _gated_attention(sliding, "window", gated)}
    layers = Config({**c.data, "mlp_only_layers": _dense_layers(c)}, c.where)
    feed = feed_forward(layers, router_bias=c.flag("use_moe_router_bias", default=True))

    def layer(index: int) -> tuple[str, Part]:
        return "layers", attention["window" if local[index] else ""] + feed(index)

    dense = mlp(hidden_size=full["hidden_size"], intermediate_size=c.size("intermediate_size"))
    return decoder(
        config,
        layer,
        family=family,
        spans=window_span(c) if any(local) else {},
        extras=mtp(c, attention["window" if any(local) else ""] + dense),
        vision=tower(config),
    )


def _dense_layers(c: Config) -> list[int]:
    """The layers that the list ``"moe_layers_enum": "3,4,5"`` leaves out."""
    numbers = str(c.get("moe_layers_enum", default="")).split(",")
    sparse = {int(number) for number in numbers if number.strip().isdigit()}
    return [i for i in range(c.layers) if i not in sparse] if sparse else []


def _gated_attention(sizes: dict[str, Any], span: str, gated: bool) -> Part:
    """Grouped-query attention, its heads scaled by a gate each where the config asks for that."""
    part = gqa(**sizes, qk_norm="head", span=span, pre_norm=_NORM)
    if not gated:
        return part
    gate = (
        linear("g_proj", s.hidden_size, s.num_attention_heads, shard="column", role="attn", inputs=(_NORM,)),
        elementwise("head_gate", s.num_attention_heads / s.tp * s.head_dim, flops=2, inputs=("attention", "g_proj")),
    )
    where = next(i for i, op in enumerate(part.ops) if op.name == "o_proj")
    return Part(part.ops[:where] + gate + part.ops[where:], part.dims)
