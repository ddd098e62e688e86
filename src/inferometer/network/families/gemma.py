"""Gemma 3, 3n and 4: sliding layers between full ones, norms on q and k and around attention and MLP."""

from __future__ import annotations

from functools import cache

import msgspec

from ...base.symbols import names as s
from ..blocks import gqa, mlp, moe
from ..graph import Block, Model, Part
from ..operators import elementwise, embedding, linear, norm
from .config import Config
from .decoder import decoder, expert_sizes, heads, window_span, windows
from .llama import build_llama
from .vision import tower

# What Gemma3TextConfig fills in: the published configs of 4 B and more leave some of these out.
_GEMMA3_DEFAULTS = {
    "vocab_size": 262208,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 4096,
    "max_position_embeddings": 131072,
}


def build_gemma3(config: Config, *, family: str = "gemma3") -> Model:
    """Gemma 3: norms on both sides of attention and MLP, norms on q and k, five sliding layers for each full one.

    ``build_gemma3(Config({"model_type": "gemma3", "text_config": {"hidden_size": 2560, …}, "vision_config": {…}}))``
    """
    complete = Config({**_GEMMA3_DEFAULTS, **config.data}, config.where)
    return _two_bases(build_llama(complete, family=family, qk_norm="head", norms="both", pattern=6, tied=True))


def _two_bases(model: Model) -> Model:
    """Sliding layers turn positions at another base frequency than full ones: an engine keeps a table for each."""
    return msgspec.structs.replace(model, sizes={**model.sizes, "rope_elements": 2 * model.sizes["rope_elements"]})


# What Gemma3nTextConfig fills in; the published E4B says the same.
_GEMMA3N_DEFAULTS = {
    "vocab_size": 262400,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "sliding_window": 512,
    "vocab_size_per_layer_input": 262144,
    "hidden_size_per_layer_input": 256,
    "max_position_embeddings": 32768,
}


def build_gemma3n(config: Config, *, family: str = "gemma3n") -> Model:
    """Gemma 3n: several residual streams (AltUp), a low-rank path beside attention, inputs for every layer.

    ``build_gemma3n(Config({"model_type": "gemma3n", "text_config": {"altup_num_inputs": 4, "laurel_rank": 64, …}}))``
    """
    c = Config({**_GEMMA3N_DEFAULTS, **config.text.data}, config.text.where)
    local, sizes = windows(c, 5), heads(c)
    hidden, per_layer = sizes["hidden_size"], c.size("hidden_size_per_layer_input")
    streams, rank = c.size("altup_num_inputs", default=4), c.size("laurel_rank", default=64)
    given = c.get("intermediate_size")
    each = given if isinstance(given, list) and len(given) >= c.layers else [given] * c.layers
    widths = [Config({"intermediate_size": width}, c.where).size("intermediate_size") for width in each]
    first_shared = c.layers - c.size("num_kv_shared_layers", default=15, least=0)

    @cache
    def part(near: bool, shared: bool, width: int) -> Part:
        attention = gqa(
            **sizes,
            span="window" if near else "",
            qk_norm="head",
            shared_kv=shared,
            post_norm="post_attention_layernorm",
        )
        before, after = "pre_feedforward_layernorm", "post_feedforward_layernorm"
        feed = mlp(hidden_size=hidden, intermediate_size=width, pre_norm=before, post_norm=after)
        return _alternating_update(streams) + attention + _laurel(rank) + feed + _layer_input(hidden, per_layer)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", part(local[index], index >= first_shared, widths[index])

    model = decoder(
        Config({**c.data, "vision_config": None}, c.where),
        layer,
        family=family,
        spans=window_span(c),
        tied=c.flag("tie_word_embeddings", default=True),
        warnings=_left_out(config),
    )
    return _with_streams(_with_layer_inputs(_two_bases(model), c, per_layer), streams)


def _left_out(config: Config) -> tuple[str, ...]:
    """What the small ones of Gemma 3n and 4 have besides, and is not computed."""
    return ("its audio tower is left out, and its vision tower if the config lacks it",) * bool(
        config.section("audio_config")
    )


def _alternating_update(streams: int) -> Part:
    """AltUp: a small router predicts all residual streams before a layer, and corrects them by what it gives."""
    all_streams = s.altup_num_inputs * s.hidden_size
    predict, correct = s.altup_num_inputs**3, s.altup_num_inputs**2 + s.hidden_size
    ops = (
        norm("router_norm", s.hidden_size, inputs=()),
        linear("modality_router", s.hidden_size, s.altup_num_inputs, role="router"),
        elementwise("altup_predict", all_streams, flops=2 * s.altup_num_inputs, params=predict, inputs=()),
        elementwise("altup_correct", all_streams, flops=3, params=correct),
    )
    return Part(ops, {"altup_num_inputs": streams})


def _laurel(rank: int) -> Part:
    """A learned augmented residual: a product of low rank beside the attention."""
    ops = (
        linear("laurel_left", s.hidden_size, s.laurel_rank, role="mlp", inputs=("input_layernorm",)),
        linear("laurel_right", s.laurel_rank, s.hidden_size, role="mlp"),
        norm("post_laurel_norm", s.hidden_size),
    )
    return Part(ops, {"laurel_rank": rank})


def _with_streams(model: Model, streams: int) -> Model:
    """The projections that make residual streams of the embedding, and one state of them before the head."""
    others = (s.altup_num_inputs - 1) * s.hidden_size
    spread = linear("altup_projections", s.hidden_size, others, role="embed", inputs=("embed_tokens",))
    join = linear("altup_unembed_projections", others, others, role="embed", groups=s.altup_num_inputs - 1, inputs=())

    def extend(block: Block) -> Block:
        more = {"embed": ((*block.ops, spread)), "head": ((join, *block.ops))}.get(block.stage, block.ops)
        dims = {**block.dims, "altup_num_inputs": streams} if block.stage in ("embed", "head") else block.dims
        return msgspec.structs.replace(block, ops=more, dims=dims)

    return msgspec.structs.replace(model, blocks=tuple(extend(b) for b in model.blocks))


def build_gemma4(config: Config, *, family: str = "gemma4") -> Model:
    """Gemma 4: full layers with own head size and KV heads, experts beside the dense MLP, inputs for every layer.

    ``build_gemma4(Config({"model_type": "gemma4", "text_config": {"global_head_dim": 512, …}, "vision_config": {…}}))``
    """
    c = config.text
    local = windows(c, 6)
    sizes = heads(c)
    sliding = {**sizes, "span": "window"}
    full = {
        **sizes,
        "head_dim": c.size("global_head_dim", default=sizes["head_dim"]),
        "num_key_value_heads": c.size("num_global_key_value_heads", default=sizes["num_key_value_heads"]),
        "k_is_v": c.flag("attention_k_eq_v"),
    }
    first_shared = c.layers - c.size("num_kv_shared_layers", default=0, least=0)
    wide = 2 if c.flag("use_double_wide_mlp") else 1
    per_layer = c.size("hidden_size_per_layer_input", default=0, least=0)

    @cache
    def part(near: bool, shared: bool) -> Part:
        attention = gqa(
            **(sliding if near else full),
            bias=c.flag("attention_bias"),
            qk_norm="head",
            shared_kv=shared,
            post_norm="post_attention_layernorm",
        )
        layers = attention + _dense_and_experts(c, c.size("intermediate_size") * (wide if shared else 1))
        return layers + _layer_input(sizes["hidden_size"], per_layer) if per_layer else layers

    def layer(index: int) -> tuple[str, Part]:
        # a sharing layer has no keys and values of its own: it takes those of the last earlier layer of its kind
        return "layers", part(local[index], index >= first_shared)

    model = decoder(
        config,
        layer,
        family=family,
        spans=window_span(c) if any(local) else {},
        tied=c.flag("tie_word_embeddings", default=True),
        vision=tower(config),
        warnings=_left_out(config),
    )
    model = _two_bases(model)
    return _with_layer_inputs(model, c, per_layer) if per_layer else model


def _dense_and_experts(c: Config, width: int) -> Part:
    """The dense MLP, and where there are experts these beside it, each side between norms of its own."""
    before, after = "pre_feedforward_layernorm", "post_feedforward_layernorm"
    hidden = c.size("hidden_size")
    mixed = c.flag("enable_moe_block")
    dense = mlp(hidden_size=hidden, intermediate_size=width, pre_norm=before, post_norm=after + "_1" * mixed)
    if not mixed:
        return dense
    entry = (
        norm("router_norm", s.hidden_size, inputs=(before,)),
        norm(f"{before}_2", s.hidden_size, inputs=(before,)),
    )
    experts = moe(**expert_sizes(c), pre_norm="", inputs=(f"{before}_2",), post_norm=f"{after}_2")
    join = (
        elementwise("add", 2 * s.hidden_size, s.hidden_size, params=s.num_experts, inputs=(f"{after}_1", f"{after}_2")),
        norm(after, s.hidden_size),
    )
    return dense + Part(entry, {}) + experts + Part(join, {})


def _layer_input(hidden: int, width: int) -> Part:
    """A layer's own slice of the per-layer embeddings, gated by the hidden state and added to it."""
    ops = (
        linear("per_layer_input_gate", s.hidden_size, s.hidden_size_per_layer_input, role="mlp"),
        elementwise("per_layer_act", 2 * s.hidden_size_per_layer_input, s.hidden_size_per_layer_input, flops=5),
        linear("per_layer_projection", s.hidden_size_per_layer_input, s.hidden_size, role="mlp"),
        norm("post_per_layer_input_norm", s.hidden_size),
    )
    return Part(ops, {"hidden_size": hidden, "hidden_size_per_layer_input": width})


def _with_layer_inputs(model: Model, c: Config, width: int) -> Model:
    """The table and the projection that give all layers their inputs, at the end of the embedding."""
    total = s.num_hidden_layers * s.hidden_size_per_layer_input
    ops = (
        embedding("embed_tokens_per_layer", s.vocab_size_per_layer_input, total),
        linear("per_layer_model_projection", s.hidden_size, total, role="embed", inputs=("embed_tokens",)),
        norm("per_layer_projection_norm", s.hidden_size_per_layer_input, rows=s.num_hidden_layers),
    )
    dims: dict[str, float] = {
        "num_hidden_layers": c.layers,
        "hidden_size_per_layer_input": width,
        "vocab_size_per_layer_input": c.size("vocab_size_per_layer_input", "vocab_size"),
    }

    def extend(block: Block) -> Block:
        if block.stage != "embed":
            return block
        return msgspec.structs.replace(block, ops=block.ops + ops, dims={**block.dims, **dims})

    return msgspec.structs.replace(model, blocks=tuple(extend(b) for b in model.blocks))
