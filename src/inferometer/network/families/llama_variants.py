"""Decoders that are a Llama in the words of their own configs: OPT, Falcon, ChatGLM, the first Qwen, DBRX, Hunyuan,
MiniCPM-V, Llama 3.2 Vision, which is one with layers between that look at images, and LLaVA, a tower before any.
"""

from __future__ import annotations

from typing import Any

from ...base.errors import BadFile, abbreviate
from ...base.symbols import names as s
from ..blocks import gqa
from ..graph import Block, Model, Part
from ..operators import elementwise, linear, norm
from .config import Config
from .decoder import decoder, feed_forward, heads
from .llama import build_llama

# What LlamaConfig fills in: the converted LLaVA-1.5 of 7 B leaves all of these out.
_LLAMA = {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32}


def build_opt(config: Config, *, family: str = "opt") -> Model:
    """OPT: learned positions (and two rows more), biases; the 350m has its norms after and narrow embeddings.

    ``build_opt(Config({"model_type": "opt", "hidden_size": 768, "ffn_dim": 3072, "word_embed_proj_dim": 768, …}))``
    """
    before, bias = config.flag("do_layer_norm_before", default=True), config.flag("enable_bias", default=True)
    return build_llama(
        config,
        family=family,
        bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_bias=True,
        gated=False,
        rope=False,
        norms="before" if before else "after",
        learned=2,
        tied=True,
        narrow=config.size("word_embed_proj_dim", default=0, least=0),
        final_norm=before and not config.flag("_remove_final_layer_norm"),
    )


def build_falcon(config: Config, *, family: str = "falcon") -> Model:
    """Falcon: attention and MLP in parallel, one KV head (7 B) or a few (40 B, 180 B); the RW ones are sequential.

    ``build_falcon(Config({"model_type": "falcon", "hidden_size": 4544, "multi_query": True, …}))``
    """
    new, bias = config.flag("new_decoder_architecture"), config.flag("bias")
    query = config.size("num_attention_heads", "n_head")
    grouped = config.size("num_kv_heads", "n_head_kv", default=query)
    kv = grouped if new else 1 if config.flag("multi_query", default=True) else query
    norms = config.size("num_ln_in_parallel_attn", default=2 if new else 1)
    return build_llama(
        Config({**config.data, "num_key_value_heads": kv}, config.where),
        family=family,
        bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        norm_bias=True,
        gated=False,
        rope=not config.flag("alibi"),
        parallel=norms,
        tied=True,
    )


def build_chatglm(config: Config, *, family: str = "chatglm") -> Model:
    """ChatGLM 2, 3 and GLM-4-9B: two KV groups, bias only on q, k and v. The first ChatGLM has biases everywhere.

    ``build_chatglm(Config({"model_type": "chatglm", "padded_vocab_size": 65024, "multi_query_group_num": 2, …}))``
    """
    if config.get("inner_hidden_size") is not None:
        data = {**config.data, "intermediate_size": config.size("inner_hidden_size")}
        return build_llama(
            Config(data, config.where),
            family=family,
            bias=True,
            out_bias=True,
            mlp_bias=True,
            norm_bias=True,
            gated=False,
            tied=True,
        )
    bias = config.flag("add_bias_linear")
    return build_llama(
        config,
        family=family,
        bias=bias or config.flag("add_qkv_bias"),
        out_bias=bias,
        mlp_bias=bias,
        final_norm=config.flag("post_layer_norm", default=True),
    )


def build_qwen(config: Config, *, family: str = "qwen") -> Model:
    """Qwen (the first): a Llama with bias on q, k and v; ``intermediate_size`` counts gate and up projection together.

    ``build_qwen(Config({"model_type": "qwen", "hidden_size": 4096, "intermediate_size": 22016, …}))``
    """
    half = {"intermediate_size": config.size("intermediate_size", least=2) // 2}
    return build_llama(Config({**config.data, **half}, config.where), family=family, bias=True, out_bias=False)


def build_dbrx(config: Config, *, family: str = "dbrx") -> Model:
    """DBRX: a Llama-like decoder of experts whose sizes are in ``attn_config`` and ``ffn_config``.

    ``build_dbrx(Config({"model_type": "dbrx", "d_model": 6144, "ffn_config": {"moe_num_experts": 16, …}, …}))``
    """
    attention = config.section("attn_config") or config
    experts = config.section("ffn_config") or config
    sizes = {
        "hidden_size": config.size("d_model"),
        "num_key_value_heads": attention.size("kv_n_heads", default=config.size("n_heads")),
        "moe_intermediate_size": experts.size("ffn_hidden_size"),
        "num_experts": experts.size("moe_num_experts"),
        "num_experts_per_tok": experts.size("moe_top_k"),
        "max_position_embeddings": config.size("max_seq_len", default=0),
    }
    return build_llama(Config({**config.data, **sizes}, config.where), family=family)


def build_hunyuan_v1_moe(config: Config, *, family: str = "hunyuan_v1_moe") -> Model:
    """Hunyuan-A13B: experts beside a shared one; sizes are one number, or a list of the same for every layer.

    ``build_hunyuan_v1_moe(Config({"model_type": "hunyuan_v1_moe", "moe_topk": [8, …], "num_shared_expert": 1, …}))``
    """

    def one(*keys: str) -> int:
        value = config.get(*keys)
        values = value if isinstance(value, list) else [value]
        if len(set(map(str, values))) != 1:
            raise BadFile(f"{config.where}: {keys[0]!r} must be the same for every layer, not {abbreviate(values)}")
        return Config({keys[0]: values[0]}, config.where).size(keys[0], least=0)

    sizes = {
        "moe_intermediate_size": one("moe_intermediate_size", "intermediate_size"),
        "num_experts_per_tok": one("moe_topk", "num_experts_per_tok"),
        "num_shared_experts": one("num_shared_expert") if config.flag("use_mixed_mlp_moe", default=True) else 0,
    }
    norms = "head" if config.flag("use_qk_norm", default=True) else ""
    return build_llama(Config({**config.data, **sizes}, config.where), family=family, qk_norm=norms)


def build_hy_v3(config: Config, *, family: str = "hy_v3") -> Model:
    """HY 3: experts with a shared one in all layers but the first; norms on q and k.

    ``build_hy_v3(Config({"model_type": "hy_v3", "num_experts": 192, "num_shared_experts": 1, …}))``
    """
    complete = Config({"first_k_dense_replace": 1, **config.data}, config.where)
    return build_llama(complete, family=family, qk_norm="head", router_bias=True)


# The language models of MiniCPM-V, by version: Llama, Qwen2, MiniCPM 4 (a Llama) and Qwen3
_MINICPMV: dict[str, dict[str, Any]] = {
    "2.5": {},
    "2.6": {"bias": True, "out_bias": False},
    "4.0": {},
    "4.5": {"qk_norm": "head"},
}


def build_minicpmv(config: Config, *, family: str = "minicpmv") -> Model:
    """MiniCPM-V 2.5 to 4.5: the decoder that its ``version`` names, without tower and resampler.

    ``build_minicpmv(Config({"model_type": "minicpmv", "version": 4.5, "hidden_size": 4096, …}))``
    """
    version = f"{config.number('version', default=2.5):.1f}"
    if version not in _MINICPMV:
        raise BadFile(f"{config.where}: 'version' may be {', '.join(_MINICPMV)}, not {version}")
    note = "its vision tower and resampler are left out"
    text = Config({**config.text.data, "vision_config": None}, config.where)
    return build_llama(text, family=family, warnings=(note,), **_MINICPMV[version])


def build_mllama(config: Config, *, family: str = "mllama") -> Model:
    """Llama 3.2 Vision: a Llama with cross-attention layers, which text alone passes by.

    ``build_mllama(Config({"model_type": "mllama", "text_config": {"cross_attention_layers": [3, 8, …], …}, …}))``
    """
    c = config.text
    cross = c.items("cross_attention_layers")
    attention, feed, idle = gqa(**heads(c)), feed_forward(c), _cross_attention_layer(c)
    note = (
        "its cross-attention layers and vision tower process images only: the layers are stored, the tower is left out"
    )
    text = Config({**c.data, "vision_config": None}, c.where)

    def layer(index: int) -> tuple[str, Part]:
        return "layers", idle if index in cross else attention + feed(index)

    model = decoder(text, layer, family=family, warnings=(note,))
    return _with_image_tokens(model)


def _cross_attention_layer(c: Config) -> Part:
    """Weights of a layer that attends to an image: stored, and not multiplied by where there is only text."""
    sizes = heads(c)
    queries, keys = s.num_attention_heads * s.head_dim, s.num_key_value_heads * s.head_dim
    width = s.cross_intermediate_size
    ops = (
        linear("cross_q_proj", s.hidden_size, queries, m=0, role="attn", shard="column", optional=True, shared=0),
        linear("cross_kv_proj", s.hidden_size, 2 * keys, m=0, role="attn", shard="column", optional=True, shared=0),
        linear("cross_o_proj", queries, s.hidden_size, m=0, role="attn", shard="row", optional=True, shared=0),
        linear("cross_gate_up_proj", s.hidden_size, 2 * width, m=0, shard="column", optional=True, shared=0),
        linear("cross_down_proj", width, s.hidden_size, m=0, shard="row", optional=True, shared=0),
        # two norms of the layer, those of q and k, and two gates
        norm("cross_norms", s.hidden_size, m=0, params=2 * s.hidden_size + 2 * s.head_dim + 2, shared=0),
    )
    return Part(ops, {**sizes, "cross_intermediate_size": c.size("intermediate_size")})


def _with_image_tokens(model: Model) -> Model:
    """Eight rows more in the embedding than the head has, for the image token and its like."""
    import msgspec

    extra = elementwise("embed_image_tokens", 0, params=8 * s.hidden_size)

    def extend(block: Block) -> Block:
        return msgspec.structs.replace(block, ops=(*block.ops, extra)) if block.stage == "embed" else block

    return msgspec.structs.replace(model, blocks=tuple(map(extend, model.blocks)))


def build_llava(config: Config, *, family: str = "llava") -> Model:
    """LLaVA in all its forms: a CLIP or SigLIP tower before a decoder that ``text_config.model_type`` names.

    The original configs are flat: the decoder's sizes beside ``mm_vision_tower``, a name.
    """
    from . import builder, families

    text = config.section("text_config")
    if text is None:
        word = family.removeprefix("llava_").replace("qwen", "qwen2")
    else:
        word = str(text.get("model_type", default="llama"))
        if word == "llama" and text.get("hidden_size") is None:
            config = Config({**config.data, "text_config": {**_LLAMA, **text.data}}, config.where)
    if word not in families() or word.startswith("llava"):
        word = "llama"
    return builder(word)(config, family=family)
