"""What a config's ``quantization_config`` says: which parts of the network are stored in which precision."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from ..errors import BadFile
from .config import Config

ROLES = ("attn", "mlp", "experts", "shared")  # what a quantisation applies to unless it is excluded
SAMPLES = {  # a module of each role, to hold against patterns of excluded modules; {} is the layer
    "attn": ("self_attn.q_proj", "self_attn.o_proj", "attn.wq_a", "linear_attn.out_proj", "mixer.q_proj"),
    "mlp": ("mlp.gate_proj", "mlp.down_proj", "feed_forward.gate_proj"),
    "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "ffn.experts.0.w1",
                "mixer.experts.0.up_proj", "mlp.experts.gate_up_proj", "feed_forward.experts.gate_up_proj"),
    "shared": ("mlp.shared_experts.gate_proj", "mlp.shared_expert.gate_proj", "ffn.shared_experts.w1",
               "mixer.shared_experts.up_proj", "feed_forward.shared_expert.gate_proj"),
}  # fmt: skip
_PREFIXES = ("model.layers", "layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
_LAYERS = (7, 20)  # two layers of the regular part; what excludes both excludes the role
_DTYPES = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
DTYPES = {**_DTYPES, **{word: word for word in _DTYPES.values()}}


def dtype(config: Config) -> str:
    """The number format a config computes in: ``dtype(Config({"torch_dtype": "float16"}))  # 'fp16'``"""
    word = str(config.get("torch_dtype", "dtype", default="bfloat16")).removeprefix("torch.")
    if word not in DTYPES:
        raise BadFile(f"{config.where}: torch_dtype {word!r} is not known; allowed: {', '.join(DTYPES)}")
    return DTYPES[word]


def declared(config: Config) -> tuple[dict[str, str], str]:
    """Precision by role, and the KV cache's, as the config declares them: ``({"experts": "mxfp4"}, "")``"""
    outer = config.section("quantization_config", "compression_config")
    text = config.section("text_config", "llm_config", "language_config")
    found = outer or (text.section("quantization_config", "compression_config") if text else None)
    if found is None:
        return {}, ""
    roles = _by_module(found) or _by_scheme(found)
    if config.text.get("expert_dtype") == "fp4" and roles.get("experts", "").startswith("fp8"):
        roles["experts"] = "mxfp4"  # DeepSeek-V4 keeps its experts in fp4 under an fp8 scheme
    if str(found.get("moe_quant_algo", default="")).upper() == "NVFP4":
        roles = dict.fromkeys(ROLES, "fp8-block") | {"experts": "nvfp4"}  # only the experts of an fp8 model were redone
    kv = found.get("kv_cache_scheme")
    kv_bits = kv.get("num_bits") if isinstance(kv, dict) else None
    algo = str(found.get("kv_cache_quant_algo", default="") or "").lower()
    return roles, "fp8" if kv_bits == 8 or algo == "fp8" else ""


def _by_scheme(found: Config) -> dict[str, str]:
    """One scheme for every role that is not excluded."""
    scheme, excluded = _scheme(found), _excluded(found)
    kept = {role for role in ROLES if all(any(_excludes(p, role, i) for p in excluded) for i in _LAYERS)}
    return {role: scheme for role in ROLES if role not in kept}


def _by_module(found: Config) -> dict[str, str]:
    """Recipes that name their modules one by one: each role takes the precision that most of its modules have."""
    votes: dict[str, list[str]] = {}
    layers = found.get("quantized_layers", default={})
    if isinstance(layers, dict):
        for name, how in layers.items():
            algo = str(how.get("quant_algo", "")).lower() if isinstance(how, dict) else ""
            votes.setdefault(_role(name), []).append(_ALGOS.get(algo, algo))
    groups = found.get("config_groups", default={})
    for group in groups.values() if isinstance(groups, dict) else ():
        for target in group.get("targets") or () if isinstance(group, dict) else ():
            if "." in str(target):
                votes.setdefault(_role(str(target)), []).append(_group(group))
    return {
        role: max(set(v), key=v.count) for role, v in votes.items() if role in ROLES and set(v) <= set(_ALGOS.values())
    }


_ALGOS = {"nvfp4": "nvfp4", "w4a16_nvfp4": "nvfp4", "fp8": "fp8", "mxfp8": "mxfp8", "mxfp4": "mxfp4",
          "fp8_pb_wo": "fp8-block", "int4_awq": "w4a16", "w4a16": "w4a16", "int8": "int8", "w8a16": "w8a16",
          "int4-g32": "int4-g32", "fp8-block": "fp8-block"}  # fmt: skip


def _role(module: str) -> str:
    """The role of a module's weights, by the words in its name."""
    words = module.lower()
    for mark, role in (("shared_expert", "shared"), ("experts", "experts"), ("attn", "attn"), ("mixer", "attn"),
                       ("mlp", "mlp"), ("feed_forward", "mlp"), ("ffn", "mlp")):  # fmt: skip
        if mark in words:
            return role
    return ""


def _scheme(found: Config) -> str:
    """The name in precisions.toml that a quantisation section means."""
    method = str(found.get("quant_method", default="")).lower()
    algo = str(found.get("quant_algo", default="")).lower()
    if method == "mxfp4":
        return "mxfp4"
    if "nvfp4" in algo:
        return "nvfp4"
    if method == "fp8" or algo == "fp8":
        return "fp8-block" if found.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin"):
        bits = found.size("bits", "w_bit", default=4)
        return {2: "int2", 4: "w4a16", 8: "w8a16"}.get(bits, "w4a16")
    if method in ("compressed-tensors", "modelopt", "quark"):
        groups = found.get("config_groups", default={})
        first: Any = next(iter(groups.values()), {}) if isinstance(groups, dict) else {}
        return _group(first if isinstance(first, dict) else {})
    if method == "bitsandbytes":
        return "w4a16" if found.flag("load_in_4bit") else "w8a16"
    raise BadFile(
        f"{found.where}: quantisation method {method or algo!r} is not known; take the section out and set -q"
    )


def _group(group: dict[str, Any]) -> str:
    """One group of compressed-tensors or ModelOpt: bits, grouping and type of its weights."""
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    bits, size, kind = weights.get("num_bits", 16), weights.get("group_size"), weights.get("type", "int")
    if kind == "float":
        if bits == 4:
            return "nvfp4" if size == 16 else "mxfp4"
        return "fp8-block" if weights.get("strategy") == "block" else "fp8"
    if bits == 8:
        return "int8" if inputs else "w8a16"
    return "int4-g32" if size == 32 else "w4a16"


def _excluded(found: Config) -> list[str]:
    words: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        words += [str(w) for w in found.get(key, default=[]) or []]
    return words


def _excludes(pattern: str, role: str, layer: int) -> bool:
    """Whether a pattern keeps the modules of a role in one layer from being quantised."""
    if role == "experts" and re.search(r"mlp\*?$", pattern):
        return False  # where experts stand beside a dense MLP (Gemma 4) this means the MLP alone
    names = [f"{prefix}.{layer}.{module}" for prefix in _PREFIXES for module in SAMPLES[role]]
    if pattern.startswith("re:"):
        return any(re.match(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"{pattern}.*") for name in names)
    return any(f".{pattern}." in f".{name}." for name in names)  # whole path components, so that gate ≠ gate_proj
