"""Model families: config.json in, `Model` out. The file name is the family; relatives and their traits are listed here.

A relative of a family that is read like it is one line in ``RELATIVES``; something built differently is one file with a
``build(config, *, family)`` function. Families that belong together may share a file: ``SHARED_FILES``.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ...base.errors import BadFile, BadValue, about
from ..graph import Model
from .config import Config

_TOOLS = {"config", "decoder", "network_file", "patterns", "quantization", "vision"}  # what families are built with

# file -> the families in it, each a function ``build_<family>``
SHARED_FILES: dict[str, tuple[str, ...]] = {
    "deepseek": ("deepseek_v3", "deepseek_v4", "longcat_flash"),
    "gemma": ("gemma3", "gemma3n", "gemma4"),
    "hybrid_attention": ("qwen3_next", "kimi_linear", "minimax", "lfm2"),
    "llama": ("llama", "llama4"),
    "llama_variants": (
        *("opt", "falcon", "chatglm", "qwen", "dbrx", "hunyuan_v1_moe", "hy_v3", "minicpmv", "mllama", "llava"),
    ),
    "mamba": ("mamba", "mamba2", "jamba", "bamba", "granitemoehybrid", "falcon_h1"),
    "mixed_attention": ("minimax_m3", "mimo_v2_flash", "step3p7"),
    "nemotron": ("nemotron_h", "nemotron_nas"),
}

# Decoders of the first kind: biases everywhere, LayerNorm with a bias too, an MLP without a gate.
_BIASED = {"bias": True, "out_bias": True, "mlp_bias": True, "norm_bias": True, "gated": False}

_NO_TOWERS = ("its vision and speech towers and their adapters are left out",)

# model_type -> (family, traits)
RELATIVES: dict[str, tuple[str, dict[str, Any]]] = {
    "mistral": ("llama", {}),
    "mixtral": ("llama", {}),
    "yi": ("llama", {}),
    "internlm2": ("llama", {}),
    "baichuan": ("llama", {}),
    "phi3": ("llama", {}),
    "phimoe": ("llama", {"norm_bias": True}),
    "ministral": ("llama", {}),
    "ministral3": ("llama", {}),
    "granite": ("llama", {}),
    "smollm3": ("llama", {"tied": True}),
    "seed_oss": ("llama", {"out_bias": False}),
    "apertus": ("llama", {"qk_norm": "head", "gated": False}),
    "nemotron": ("llama", {"norm_bias": True, "gated": False}),
    "glm4": ("llama", {"out_bias": False, "norms": "both"}),
    "glm4_moe": ("llama", {"out_bias": False, "qk_norm": "head", "qk_norm_key": "use_qk_norm"}),
    "ernie4_5": ("llama", {"tied": True}),
    "ernie4_5_moe": ("llama", {"tied": True}),
    "hunyuan": ("hunyuan_v1_moe", {}),
    "bailing_moe_v2": ("llama", {"qk_norm": "head", "qk_norm_key": "use_qk_norm"}),
    "olmoe": ("llama", {"qk_norm": "layer"}),
    "qwen2": ("llama", {"bias": True, "out_bias": False}),
    "qwen2_moe": ("llama", {"bias": True, "out_bias": False, "shared_gate": True}),
    "qwen3": ("llama", {"qk_norm": "head"}),
    "qwen3_moe": ("llama", {"qk_norm": "head"}),
    "minimax_m2": ("llama", {"qk_norm": "layer"}),
    "mimo": ("llama", {"out_bias": False}),
    "olmo2": ("llama", {"qk_norm": "layer", "norms": "after"}),
    "olmo3": ("llama", {"qk_norm": "layer", "norms": "after", "pattern": 4}),
    "exaone4": ("llama", {"qk_norm": "head", "norms": "after", "pattern": 4}),
    "exaone_moe": ("llama", {"qk_norm": "head", "router_bias": True, "pattern": 4}),
    "grok-1": ("llama", {"norms": "both"}),
    "gemma": ("llama", {"tied": True}),
    "gemma2": ("llama", {"tied": True, "norms": "both", "pattern": 2}),
    "gemma3_text": ("gemma3", {}),
    "gemma4_text": ("gemma4", {}),
    "llama4_text": ("llama4", {}),
    "minimax_m3_vl": ("minimax_m3", {}),
    "step3p5": ("step3p7", {}),
    "mimo_v2": ("mimo_v2_flash", {}),
    "gemma3n_text": ("gemma3n", {}),
    "gpt2": ("llama", {**_BIASED, "rope": False, "learned": 0, "tied": True}),
    "gpt_bigcode": ("llama", {**_BIASED, "rope": False, "learned": 0, "tied": True}),
    "bloom": ("llama", {**_BIASED, "rope": False, "embed_norms": 2, "tied": True}),
    "starcoder2": ("llama", {**_BIASED, "tied": True}),
    "gpt_neox": ("llama", {**_BIASED, "parallel": 2}),
    "gptj": ("llama", {**_BIASED, "bias": False, "out_bias": False, "parallel": 1, "head_bias": True}),
    "phi": ("llama", {**_BIASED, "parallel": 1, "head_bias": True, "qk_norm": "head", "qk_norm_key": "qk_layernorm"}),
    "cohere": ("llama", {"parallel": 1, "tied": True, "qk_norm": "layer", "qk_norm_key": "use_qk_norm"}),
    "cohere2": ("llama", {"parallel": 1, "tied": True, "pattern": 4}),
    "RefinedWeb": ("falcon", {}),
    "RefinedWebModel": ("falcon", {}),
    "deepseek_ref": ("deepseek_v4", {}),
    "gpt_oss": ("llama", {"sinks": True, "router_bias": True, "expert_bias": True}),
    "deepseek_v2": ("deepseek_v3", {}),
    "deepseek_v32": ("deepseek_v3", {}),
    "kimi_k2": ("deepseek_v3", {}),
    "glm_moe_dsa": ("deepseek_v3", {}),
    "glm4_moe_lite": ("deepseek_v3", {}),
    "qwen2_vl": ("llama", {"bias": True, "out_bias": False}),
    "qwen2_5_vl": ("llama", {"bias": True, "out_bias": False}),
    "qwen3_vl": ("llama", {"qk_norm": "head"}),
    "qwen3_vl_moe": ("llama", {"qk_norm": "head"}),
    "qwen3_omni_moe": ("llama", {"qk_norm": "head", "warnings": ("its towers and talker are left out",)}),
    "phi4_multimodal": ("llama", {"tied": True, "warnings": _NO_TOWERS}),
    "phi4mm": ("llama", {"tied": True, "warnings": _NO_TOWERS}),
    "kimi_k25": ("deepseek_v3", {}),
    "llava_next": ("llava", {}),
    "llava_onevision": ("llava", {}),
    "llava_qwen": ("llava", {}),
    "llava_llama": ("llava", {}),
    "llava_mistral": ("llava", {}),
    "qwen3_5": ("qwen3_next", {}),
    "qwen3_5_text": ("qwen3_next", {}),
    "qwen3_5_moe": ("qwen3_next", {}),
    "qwen3_5_moe_text": ("qwen3_next", {}),
    "nemotron-nas": ("nemotron_nas", {}),
    "falcon_mamba": ("mamba", {"inner_norm": "plain"}),
    "kimi_k3": ("kimi_linear", {}),
    "minimax_text_01": ("minimax", {}),
    "lfm2_moe": ("lfm2", {}),
}


def families() -> list[str]:
    """Every ``model_type`` that is read on purpose: by a file, by a function of a shared file or as a relative."""
    import pkgutil

    files = {m.name for m in pkgutil.iter_modules(__path__)} - _TOOLS - set(SHARED_FILES)
    count = Counter([*files, *(name for names in SHARED_FILES.values() for name in names), *RELATIVES])
    twice = sorted(name for name, times in count.items() if times > 1)
    if twice:
        raise ValueError(f"families that are registered twice: {twice}")
    return sorted(count)


def builder(model_type: str) -> Callable[..., Model]:
    """The function that builds a known family: ``builder("qwen3")(config, family="qwen3")``; imports its file only."""
    family, traits = RELATIVES.get(model_type, (model_type, {}))
    for file, names in SHARED_FILES.items():
        if family in names:
            return partial(getattr(importlib.import_module(f"{__name__}.{file}"), f"build_{family}"), **traits)
    return partial(importlib.import_module(f"{__name__}.{family}").build, **traits)


@about("model")
def build(data: Mapping[str, Any], where: str = "config.json", *, assume_decoder: bool = False) -> Model:
    """``build(json.load(open("config.json")))``: the network that a config describes.

    What is neither known nor a plain decoder is an error, or computed as one all the same with ``assume_decoder``.
    """
    config = Config(data, where)
    if not data:
        raise BadFile(f"{where} is empty")
    kind = str(config.get("model_type", default="") or "")
    thinker = config.section("thinker_config")  # Qwen-Omni: the part that answers with text
    if thinker is not None:
        config = Config({**thinker.data, "model_type": kind}, thinker.where)
    inner = config.section("text_config", "llm_config", "language_config")
    for model_type in (kind, str(inner.get("model_type", default="") or "") if inner else ""):
        if model_type in families():
            return builder(model_type)(config, family=model_type)
    return _guess(config, kind, assume_decoder)


def _guess(config: Config, kind: str, assume_decoder: bool) -> Model:
    """An unknown family that has the sizes of a decoder is read as one, and says so."""
    name = f"model_type {kind!r}" if kind else "a config without model_type"
    text = config.text
    strange = text.unread_structure()
    if strange and not assume_decoder:
        where = text.where.replace("`", "")
        raise BadValue(
            f"{where}: {strange}, which is not a known structure; `assume_decoder` treats it as a Llama-like decoder",
            field="model",
        )
    note = f"{name} is not known; read as a Llama-like decoder from its sizes: check the parameter count"
    if strange:
        note += f" ({strange}, which is left out)"
        config = Config({**text.data, "layer_types": None, "mlp_layer_types": None}, text.where)
        text = config
    if text.get("kv_lora_rank"):
        import msgspec

        return msgspec.structs.replace(builder("deepseek_v3")(config, family=kind or "decoder"), warnings=(note,))
    for key in (("hidden_size", "n_embd", "d_model"), ("num_attention_heads", "n_head", "n_heads")):
        text.size(*key)
    bias = text.flag("attention_bias", "add_qkv_bias", "qkv_bias")
    return builder("llama")(config, family=kind or "decoder", bias=bias, warnings=(note,))
