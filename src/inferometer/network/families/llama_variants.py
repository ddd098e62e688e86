"""Decoders that are a Llama in the words of their own configs: OPT, Falcon, ChatGLM, the first Qwen, DBRX, Hunyuan."""

from __future__ import annotations

from ...base.errors import BadFile, abbreviate
from ..graph import Model
from .config import Config
from .llama import build_llama


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
