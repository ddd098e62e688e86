"""The common shape of decoders: embedding, layers that may differ, head; and how configs say which layer is what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...base.errors import BadFile, abbreviate
from ...base.symbols import names as s
from ..blocks import embed, head, mlp, moe
from ..graph import Block, Model, Part, Span, Vision, group_layers
from ..operators import linear, norm
from .config import WINDOWED, Config
from .quantization import DTYPES, declared, dtype
from .vision import tower

Layer = Callable[[int], tuple[str, Part]]


def decoder(
    config: Config,
    layer: Layer,
    *,
    family: str,
    spans: dict[str, Span] | None = None,
    positions: int = 0,
    embed_norms: int = 0,
    narrow: int = 0,
    tied: bool | None = None,
    head_bias: bool = False,
    norm_bias: bool = False,
    final_norm: bool = True,
    count: int | None = None,
    extras: tuple[Block, ...] = (),
    vision: tuple[tuple[Block, ...], Vision] | None = None,
    warnings: tuple[str, ...] = (),
    max_position: int | None = None,
    state_dtype: str = "float32",
) -> Model:
    """Put a decoder together, behind its vision tower if it has one; ``layer(i)``: the label and part of layer i.

    ``state_dtype`` is that of recurrent states where the config does not say it; "" the model's own.
    """
    c = config.text
    hidden, vocab = c.size("hidden_size", "n_embd", "d_model"), c.size("vocab_size", "padded_vocab_size")
    number = c.layers if count is None else count
    tie = c.tied if tied is None else tied
    ends = {"vocab_size": vocab, "hidden_size": hidden, "width": narrow}
    quantization, kv = declared(config)
    tower_blocks, image_tokens = vision or tower(config) or ((), None)
    if image_tokens is None and config.section("vision_config"):
        warnings = (*warnings, "its vision tower is unknown and left out")
    layers = group_layers([layer(i) for i in range(number)])
    if max_position is None:
        max_position = c.size(
            "max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "model_max_length", default=0
        )
    return Model(
        name=str(c.get("_name_or_path", default="") or family),
        family=family,
        blocks=(
            *tower_blocks,
            embed(**ends, positions=positions, norms=embed_norms),
            *layers,
            head(**ends, tied=tie, bias=head_bias, norm_bias=norm_bias, final_norm=final_norm),
        ),
        spans={"": Span(), **(spans or {})},
        max_position=max_position,
        dtype=dtype(c),
        quantization=quantization,
        kv_cache_dtype=kv,
        state_bits=state_bits(c, state_dtype),
        extras=extras,
        vision=image_tokens,
        num_layers=number,
        sizes={"hidden_size": hidden, "vocab_size": vocab, "rope_elements": max_position * _rope_width(c, layers)},
        warnings=warnings,
    )


def _rope_width(c: Config, layers: tuple[Block, ...]) -> float:
    """Elements of a head that are turned with their position: all, or those that the config names."""
    turned = [block.dims for block in layers if any(op.name == "rope" for op in block.ops)]
    width = max((dims.get("qk_rope_head_dim") or dims.get("head_dim", 0.0) for dims in turned), default=0.0)
    share = (c.section("rope_parameters") or c).number("partial_rotary_factor", "rotary_pct", default=1.0)
    return min(width, c.number("rotary_dim", default=width * max(share, 0.0)))


def state_bits(c: Config, default: str = "float32") -> float:
    """Bits per element of a recurrent state, as the config says it or else the ``default`` ("": the model's dtype)."""
    word = str(c.get("mamba_ssm_cache_dtype", "mamba_ssm_dtype", default=default))
    return 16.0 if (DTYPES.get(word) if word else dtype(c)) in ("bf16", "fp16") else 32.0


def layer_kinds(c: Config, key: str, known: dict[str, str]) -> list[str]:
    """What each layer is: the words of the list ``key``, translated by ``known``; empty if the config has no list."""
    kinds = c.items(key, c.layers)[: c.layers]
    unknown = [word for word in kinds if str(word) not in known]
    if unknown:
        raise BadFile(f"{c.where}: {key!r} may have {', '.join(map(repr, known))}, not {abbreviate(unknown[0])}")
    return [known[str(word)] for word in kinds]


def heads(c: Config) -> dict[str, Any]:
    """Attention sizes under the names that configs use: hidden, heads, KV heads, head dimension."""
    hidden = c.size("hidden_size", "n_embd", "d_model")
    query = c.size("num_attention_heads", "n_head", "n_heads", "num_heads")
    default = query
    if c.flag("multi_query_attention") or c.flag("multi_query"):
        default = c.size("multi_query_group_num", "num_kv_heads", default=1)
    groups = c.size("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups", default=default)
    if query % groups:
        raise BadFile(f"{c.where}: {query} attention heads cannot be divided into {groups} groups of key-value heads")
    width = c.size("head_dim", "attention_head_dim", "kv_channels", default=0)
    if not width and hidden % query:
        raise BadFile(
            f"{c.where}: hidden_size {hidden} is not divisible by {query} attention heads, and 'head_dim' is not set"
        )
    return {
        "hidden_size": hidden,
        "num_attention_heads": query,
        "num_key_value_heads": groups,
        "head_dim": width or hidden // query,
    }


def windows(c: Config, default: int = 1) -> list[bool]:
    """For each layer, whether it sees only a sliding window; ``default``: every how many layers one does not."""
    number = c.layers
    kinds = layer_kinds(c, "layer_types", {word: word for word in ("full_attention", "attention", *WINDOWED)})
    if not c.get("sliding_window", "sliding_window_size") or c.get("use_sliding_window") is False:
        return [False] * number
    if kinds:
        return [kind in WINDOWED for kind in kinds]
    pattern = c.get("sliding_window_pattern", "_sliding_window_pattern", default=default)
    if isinstance(pattern, str) and pattern:  # EXAONE 4: LLLG, three local layers and a global one
        return [pattern[i % len(pattern)] == "L" for i in range(number)]
    if isinstance(pattern, int) and pattern > 1:
        return [(i + 1) % pattern != 0 for i in range(number)]
    if c.get("use_sliding_window"):  # Qwen2: the layers from max_window_layers on
        first = c.size("max_window_layers", default=0, least=0)
        return [i >= first for i in range(number)]
    return [True] * number


def window_span(c: Config) -> dict[str, Span]:
    """The span of a config's sliding window, if it has one."""
    size = c.get("sliding_window", "sliding_window_size")
    return {"window": Span("window", c.size("sliding_window", "sliding_window_size"))} if size else {}


def sparse_layers(c: Config) -> list[bool]:
    """For each layer, whether its MLP is a mixture of experts."""
    number = c.layers
    if not c.get("num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts"):
        return [False] * number
    kinds = c.items("mlp_layer_types", number)
    if kinds:
        return [k == "sparse" for k in kinds[:number]]
    frequency = c.get("moe_layer_freq", "is_moe_layer", default=1)
    if isinstance(frequency, list) and frequency:
        key = "moe_layer_freq" if c.get("moe_layer_freq") else "is_moe_layer"
        return [bool(f) for f in c.items(key, number)[:number]]
    step = c.size("decoder_sparse_step", "interleave_moe_layer_step", default=1)
    dense = c.items("mlp_only_layers")
    first = c.size("first_k_dense_replace", "moe_layer_start_index", default=0, least=0)
    every = frequency if isinstance(frequency, int) and frequency > 0 else 1
    return [i >= first and i % every == 0 and (i + 1) % step == 0 and i not in dense for i in range(number)]


def expert_sizes(c: Config) -> dict[str, Any]:
    """MoE sizes under one set of names, shared experts as their total width."""
    width = c.size(
        "moe_intermediate_size",
        "expert_intermediate_size",
        "moe_ffn_hidden_size",
        "intermediate_size",
        "ffn_hidden_size",
    )
    number = c.size("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", default=0, least=0)
    shared = c.size(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "share_expert_dim",
        "shared_intermediate_size",
        default=number * width,
        least=0,
    )
    experts = c.size("num_experts", "num_local_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts")
    chosen = c.size(
        "num_experts_per_tok",
        "num_experts_per_token",
        "top_k_experts",
        "experts_per_token",
        "moe_top_k",
        "num_selected_experts",
        "moe_k",
    )
    if chosen > experts:
        raise BadFile(f"{c.where}: a token cannot choose {chosen} of {experts} experts")
    return {
        "hidden_size": c.size("hidden_size"),
        "moe_intermediate_size": width,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "shared_expert_intermediate_size": shared,
    }


def feed_forward(
    c: Config, *, gated: bool = True, bias: bool = False, dense_width: int | None = None, **options: object
) -> Callable[[int], Part]:
    """The MLP of each layer, dense or mixture, as the common keys say."""
    sparse = sparse_layers(c)
    of_mlp = {k: v for k, v in options.items() if k in ("pre_norm", "post_norm", "parallel", "inputs")}

    def dense() -> Part:
        hidden = c.size("hidden_size", "n_embd", "d_model")
        default = None if gated else 4 * hidden  # GPT-2 and its like leave it out and mean four times the width
        width = dense_width or c.size("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", default=default)
        return mlp(
            hidden_size=hidden,
            intermediate_size=width,
            gated=gated,
            bias=bias,
            norm_bias=bool(options.get("norm_bias")),
            **of_mlp,  # type: ignore[arg-type]
        )

    def mixture() -> Part:
        supported = {k: v for k, v in options.items() if k not in ("norm_bias", "parallel")}
        return moe(**{**expert_sizes(c), "gated": gated, **supported})

    dense_part = dense() if not all(sparse) else None
    moe_part = mixture() if any(sparse) else None

    def part(index: int) -> Part:
        chosen = moe_part if sparse[index] else dense_part
        assert chosen is not None
        return chosen

    return part


def mtp(c: Config, layer: Part) -> tuple[Block, ...]:
    """Multi-token-prediction modules: two norms, a projection of the joined states, and one more layer each."""
    number = c.size("num_nextn_predict_layers", "num_mtp_modules", "mtp_num_hidden_layers", default=0, least=0)
    if not number:
        return ()
    join = (
        norm("enorm", s.hidden_size, inputs=()),
        norm("hnorm", s.hidden_size, inputs=()),
        linear("eh_proj", 2 * s.hidden_size, s.hidden_size, role="mlp", inputs=("enorm", "hnorm")),
    )
    return (Block("mtp", join + layer.ops, layer.dims, tuple(range(number)), stage="mtp"),)
