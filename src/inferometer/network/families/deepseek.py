"""DeepSeek: V2 to V3.2 and what is built like them (Kimi-K2, GLM-5), V4, and LongCat-Flash."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec

from ...base.errors import BadFile
from ...base.symbols import names as s
from ..blocks import compressed, hyper_connected, hyper_head, indexer, mla, mlp, moe
from ..graph import Block, Model, Part, Span
from ..operators import linear, norm
from .config import Config
from .decoder import decoder, expert_sizes, feed_forward, mtp

# Tokens of an entry of the compressed cache, by the name of a layer's kind
_RATIOS = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}


def build_deepseek_v3(config: Config, *, family: str = "deepseek_v3") -> Model:
    """V2, V3, R1, V3.2, Kimi-K2 and GLM-5: latent attention, a few dense layers, then experts with a shared one.

    With an indexer (V3.2, GLM-5) attention is sparse: every query sees the ``index_topk`` best of the past.

    ``build_deepseek_v3(Config({"model_type": "deepseek_v3", "kv_lora_rank": 512, …}))``
    """
    c = config.text
    sparse = c.get("index_topk") is not None
    kinds = c.items("indexer_types", c.layers)
    q_rank = c.size("q_lora_rank", default=0, least=0)
    sizes: dict[str, Any] = {
        "hidden_size": c.size("hidden_size"),
        "num_attention_heads": c.size("num_attention_heads"),
        "q_lora_rank": q_rank,
        "kv_lora_rank": c.size("kv_lora_rank"),
        "qk_nope_head_dim": c.size("qk_nope_head_dim"),
        "qk_rope_head_dim": c.size("qk_rope_head_dim"),
        "v_head_dim": c.size("v_head_dim"),
    }
    bias = c.flag("attention_bias")
    choose = (
        indexer(
            hidden_size=sizes["hidden_size"],
            index_n_heads=c.size("index_n_heads"),
            index_head_dim=c.size("index_head_dim"),
            q_lora_rank=q_rank,
        )
        if sparse
        else None
    )
    span = "top_k" if sparse else ""
    full = mla(**sizes, bias=bias, span=span, absorbed=sparse, index=choose)
    follows = mla(**sizes, bias=bias, span=span, absorbed=sparse)  # uses the choice of an earlier layer
    feed = feed_forward(c)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", (follows if kinds and kinds[index] == "shared" else full) + feed(index)

    return decoder(
        config,
        layer,
        family=family,
        spans={"top_k": Span("top_k", c.size("index_topk"))} if sparse else {},
        extras=mtp(c, layer(c.layers - 1)[1]),
    )


def build_deepseek_v4(config: Config, *, family: str = "deepseek_v4") -> Model:
    """DeepSeek-V4: compressed attention, hyper-connections instead of a residual sum, experts in every layer.

    The first ``num_hash_layers`` layers route by a table of token ids, which is no parameter.

    ``build_deepseek_v4(Config({"model_type": "deepseek_v4", "compress_ratios": [0, 4, 128, …], "hc_mult": 4, …}))``
    """
    c = config.text
    ratios, streams = _ratios(c), c.size("hc_mult", default=4)
    hidden, hashed = c.size("hidden_size"), c.size("num_hash_layers", default=0, least=0)
    sizes = {
        key: c.size(key)
        for key in (
            "hidden_size",
            "num_attention_heads",
            "head_dim",
            "qk_rope_head_dim",
            "q_lora_rank",
            "o_lora_rank",
            "o_groups",
            "index_n_heads",
            "index_head_dim",
        )
    }

    @cache
    def part(ratio: int, learned: bool) -> Part:
        entry = Part((norm("post_attention_layernorm", s.hidden_size),), {})
        feed = moe(**expert_sizes(c), router_bias=learned, pre_norm="", inputs=("post_attention_layernorm",))
        around = {"hidden_size": hidden, "hc_mult": streams}
        attention = hyper_connected("attn", compressed(**sizes, ratio=ratio), **around)
        return attention + hyper_connected("ffn", entry + feed, **around)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", part(ratios[index] if index < len(ratios) else 0, index >= hashed)

    spans = {f"ratio_{r}": Span(ratio=r) for r in sorted(set(ratios)) if r}
    spans |= {"window": Span("window", c.size("sliding_window")), "top_k": Span("top_k", c.size("index_topk"), 4)}
    model = decoder(config, layer, family=family, spans=spans)
    head = model.blocks[-1]
    joined = msgspec.structs.replace(head, ops=hyper_head() + head.ops, dims={**head.dims, "hc_mult": streams})
    return msgspec.structs.replace(
        model,
        blocks=(*model.blocks[:-1], joined),
        extras=_mtp_v4(c, layer(c.layers)[1]),
        kv_cache_dtype=model.kv_cache_dtype or "fp8",  # what it was trained to be served with
    )


def _ratios(c: Config) -> list[int]:
    """How many tokens an entry of the compressed cache stands for, by layer; 0 = the layer has a window only."""
    kinds = c.items("layer_types", c.layers)
    ratios = c.items("compress_ratios", c.layers) or [_RATIOS.get(str(kind)) for kind in kinds]
    if not ratios:
        raise BadFile(f"{c.where} lacks 'compress_ratios', which sets the attention of every layer")
    if any(isinstance(r, bool) or not isinstance(r, int) or not 0 <= r <= 1 << 20 for r in ratios):
        raise BadFile(f"{c.where}: 'compress_ratios' must be whole numbers of at least 0, one for each layer")
    return ratios


def _mtp_v4(c: Config, layer: Part) -> tuple[Block, ...]:
    """Multi-token prediction: the embedding and the state, each projected, through one layer with a window only."""
    number = c.size("num_nextn_predict_layers", default=0, least=0)
    if not number:
        return ()
    join = (
        norm("enorm", s.hidden_size, inputs=()),
        linear("e_proj", s.hidden_size, s.hidden_size, role="attn"),
        norm("hnorm", s.hidden_size, inputs=()),
        linear("h_proj", s.hidden_size, s.hidden_size, role="attn"),
    )
    ops = (*join, *layer.ops, *hyper_head(), norm("norm", s.hidden_size))
    return (Block("mtp", ops, layer.dims, tuple(range(number)), stage="mtp"),)


def build_longcat_flash(config: Config, *, family: str = "longcat_flash") -> Model:
    """LongCat-Flash: layers of two latent attentions and two dense MLPs, with experts beside the second half.

    A layer is two here, as ``num_hidden_layers`` counts them. Of the experts that a token chooses, some are identities
    (``zero_expert_num``): chosen evenly, those that compute are the share that computing ones have of all.

    ``build_longcat_flash(Config({"model_type": "longcat_flash", "num_layers": 28, "zero_expert_num": 256, …}))``
    """
    c = config.text
    hidden = c.size("hidden_size")
    attention = mla(
        hidden_size=hidden,
        num_attention_heads=c.size("num_attention_heads"),
        q_lora_rank=c.size("q_lora_rank", default=0, least=0),
        kv_lora_rank=c.size("kv_lora_rank"),
        qk_nope_head_dim=c.size("qk_nope_head_dim"),
        qk_rope_head_dim=c.size("qk_rope_head_dim"),
        v_head_dim=c.size("v_head_dim"),
        bias=c.flag("attention_bias"),
    )
    dense = mlp(hidden_size=hidden, intermediate_size=c.size("ffn_hidden_size", "intermediate_size"))
    experts = moe(
        hidden_size=hidden,
        moe_intermediate_size=c.size("expert_ffn_hidden_size", "moe_intermediate_size"),
        num_experts=c.size("n_routed_experts"),
        num_experts_per_tok=c.size("moe_topk", "num_experts_per_tok"),
        zero_expert_num=c.size("zero_expert_num", default=0, least=0),
        router_bias=True,  # a correction for balance
        pre_norm="",
        inputs=("post_attention_layernorm",),
    )
    halves = (attention + dense + experts, attention + dense)
    count = 2 * c.size("num_layers", default=max(1, c.size("num_hidden_layers", default=56) // 2))
    return decoder(config, lambda index: ("layers", halves[index % 2]), family=family, count=count)
