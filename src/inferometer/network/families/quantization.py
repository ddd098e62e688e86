"""What a config's ``quantization_config`` says: which parts of the network are stored in which precision."""

from __future__ import annotations

import fnmatch
import functools
import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from ...base.errors import BadFile, abbreviate
from .config import Config

ROLES = ("attn", "mlp", "experts", "shared")  # what a quantisation applies to unless it is excluded
SAMPLES = {  # a module of each role, to hold against patterns of excluded modules; {} is the layer
    "attn": ("self_attn.q_proj", "self_attn.o_proj", "attn.wq_a", "linear_attn.out_proj", "mixer.q_proj"),
    "mlp": ("mlp.gate_proj", "mlp.down_proj", "feed_forward.gate_proj"),
    "experts": (
        "mlp.experts.0.gate_proj",
        "block_sparse_moe.experts.0.w1",
        "ffn.experts.0.w1",
        "mixer.experts.0.up_proj",
        "mlp.experts.gate_up_proj",
        "feed_forward.experts.gate_up_proj",
    ),
    "shared": (
        "mlp.shared_experts.gate_proj",
        "mlp.shared_expert.gate_proj",
        "ffn.shared_experts.w1",
        "mixer.shared_experts.up_proj",
        "feed_forward.shared_expert.gate_proj",
    ),
}
_PREFIXES = ("model.layers", "layers", "model.language_model.layers", "language_model.model.layers", "backbone.layers")
_LAYERS = (7, 20)  # two layers of the regular part; what excludes both excludes the role
_DTYPES = {"auto": "bf16", "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
DTYPES = {**_DTYPES, **{word: word for word in _DTYPES.values()}}
MAX_PATTERN_LENGTH = 1000  # characters; a longer pattern is only searched for plain text
_TOKEN = re.compile(
    r"(?P<atom>\\.|\[[\w.-]+\]|[^\\()\[\]{}|^$*+?])(?P<repeat>[*+?]?)"
    r"|(?P<open>\((?:\?:)?)|(?P<close>\)(?![*+?{]))|(?P<bar>\|)|(?P<anchor>[$^])|(?P<other>.)",
    re.S,
)


def dtype(config: Config) -> str:
    """The number format a config computes in: ``dtype(Config({"torch_dtype": "float16"}))  # 'fp16'``"""
    word = str(config.get("torch_dtype", "dtype", default="bfloat16")).removeprefix("torch.")
    if word not in DTYPES:
        raise BadFile(f"{config.where}: torch_dtype {abbreviate(word)} is not known; allowed: {', '.join(DTYPES)}")
    return DTYPES[word]


def declared(config: Config) -> tuple[dict[str, str], str]:
    """Precision by role, and the KV cache's, as the config declares them: ``({"experts": "mxfp4"}, "")``"""
    section = _section(config)
    if section is None:
        return {}, ""
    if str(section.get("moe_quant_algo", default="")).upper() == "NVFP4":
        roles = dict.fromkeys(ROLES, "fp8-block") | {"experts": "nvfp4"}  # only the experts of an fp8 model were redone
    else:
        roles = _by_scheme(section) | _by_module(section)
    if config.text.get("expert_dtype") == "fp4" and roles.get("experts", "").startswith("fp8"):
        roles["experts"] = "mxfp4"  # DeepSeek-V4 keeps its experts in fp4 under an fp8 scheme
    kv = section.get("kv_cache_scheme")
    kv_bits = kv.get("num_bits") if isinstance(kv, dict) else None
    algo = str(section.get("kv_cache_quant_algo", default="") or "").lower()
    return {role: p for role, p in roles.items() if p}, "fp8" if kv_bits == 8 or algo == "fp8" else ""


def _section(config: Config) -> Config | None:
    """The part that speaks of quantisation: the config's own, or its language model's."""
    for place in (config, config.section("text_config", "llm_config", "language_config")):
        for key in _SECTIONS if place is not None else ():
            value = place.get(key)  # type: ignore[union-attr]
            if value is not None and not isinstance(value, Mapping):
                raise BadFile(f"{place.where}: {key!r} must be an object, not {abbreviate(value)}")  # type: ignore[union-attr]
            if value:
                return place.section(key)  # type: ignore[union-attr]
    return None


def _by_scheme(section: Config) -> dict[str, str]:
    """One scheme for every role that is not excluded; none where the modules are named one by one."""
    if _layers(section) or (_groups(section, named=True) and not _groups(section, named=False)):
        return {}
    scheme, excluded = _scheme(section), _excluded(section)
    kept = {role for role in ROLES if all(any(_excludes(p, role, i) for p in excluded) for i in _LAYERS)}
    return {role: scheme for role in ROLES if role not in kept}


def _by_module(section: Config) -> dict[str, str]:
    """Recipes that name their modules one by one: each role takes the precision that most of its modules have."""
    votes: dict[str, list[str]] = {}
    for name, how in _layers(section).items():
        algo = str(how.get("quant_algo", "")).lower() if isinstance(how, Mapping) else ""
        if algo not in _ALGOS:
            raise _unknown(section, f"algorithm {abbreviate(algo)} of layer {abbreviate(str(name))}")
        votes.setdefault(_role(str(name)), []).append(_ALGOS[algo])
    for group in _groups(section, named=True):
        for target in group["targets"]:
            votes.setdefault(_role(str(target)), []).append(_group(section, group))
    return {role: max(sorted(set(v)), key=v.count) for role, v in votes.items() if role in ROLES}


def _layers(section: Config) -> Mapping[str, Any]:
    """ModelOpt's table of modules."""
    layers = section.get("quantized_layers", default={})
    if not isinstance(layers, Mapping):
        raise BadFile(f"{section.where}: 'quantized_layers' must be an object, not {abbreviate(layers)}")
    return layers


def _groups(section: Config, named: bool) -> list[Mapping[str, Any]]:
    """The groups whose targets are modules by name (``named``), or those of a whole class such as Linear."""
    groups = section.get("config_groups", default={})
    if not isinstance(groups, Mapping) or not all(isinstance(g, Mapping) for g in groups.values()):
        raise BadFile(f"{section.where}: 'config_groups' must be an object of groups, not {abbreviate(groups)}")
    chosen: list[Mapping[str, Any]] = []
    for group in groups.values():
        targets = group.get("targets") or ["Linear"]
        if not isinstance(targets, list | tuple):
            raise BadFile(f"{section.where}: 'targets' must be a list, not {abbreviate(targets)}")
        if any("." in str(t) for t in targets) == named:
            chosen.append({**group, "targets": [t for t in targets if not named or "." in str(t)]})
    return chosen


_SECTIONS = ("quantization_config", "compression_config")
_ALGOS = {
    "nvfp4": "nvfp4",
    "w4a16_nvfp4": "nvfp4",
    "nvfp4_awq": "nvfp4",
    "fp8": "fp8",
    "mxfp8": "mxfp8",
    "mxfp4": "mxfp4",
    "fp8_pb_wo": "fp8-block",
    "fp8_per_channel_per_token": "fp8",
    "int4_awq": "w4a16",
    "w4a16_awq": "w4a16",
    "w4a16": "w4a16",
    "int8": "int8",
    "int8_sq": "int8",
    "w8a8_sq_per_channel": "int8",
    "w8a16": "w8a16",
}


def _role(module: str) -> str:
    """The role of a module's weights, by the parts of its name."""
    name = module.lower()
    for mark, role in (
        ("shared_expert", "shared"),
        ("experts", "experts"),
        ("attn", "attn"),
        ("mixer", "attn"),
        ("mlp", "mlp"),
        ("feed_forward", "mlp"),
        ("ffn", "mlp"),
    ):
        if mark in name:
            return role
    return ""


def _scheme(section: Config) -> str:
    """The name in precisions.toml that a quantisation section means; empty where the weights stay as they are."""
    method = str(section.get("quant_method", default="")).lower()
    algo = str(section.get("quant_algo", default="")).lower()
    if method == "mxfp4":
        return "mxfp4"
    if method in ("fp8", "fbgemm_fp8") or algo == "fp8":
        return "fp8-block" if section.get("weight_block_size") else "fp8"
    if method in ("awq", "gptq", "auto-round", "awq_marlin", "gptq_marlin"):
        bits = section.size("bits", "w_bit", default=4)
        if bits not in _BITS:
            raise _unknown(section, f"{bits} bits of method {method!r}")
        return _BITS[bits]
    if algo in _ALGOS:
        return _ALGOS[algo]
    groups = _groups(section, named=False)
    if method in _LISTED and groups and not algo:
        return _group(section, groups[0])
    if method == "bitsandbytes" and (section.flag("load_in_4bit") or section.flag("load_in_8bit")):
        return "w4a16" if section.flag("load_in_4bit") else "w8a16"
    without = " without groups or layers" if method in _LISTED else ""
    raise _unknown(section, f"method {abbreviate(' '.join(filter(None, (method, algo))))}{without}")


_LISTED = ("compressed-tensors", "modelopt", "quark")  # methods that list groups of modules
_BITS = {2: "int2", 4: "w4a16", 8: "w8a16"}  # weights alone, in groups


def _unknown(section: Config, what: str) -> BadFile:
    return BadFile(f"{section.where}: quantisation {what} is not known; take the section out and set -q")


def _group(section: Config, group: Mapping[str, Any]) -> str:
    """One group of compressed-tensors or ModelOpt: bits, grouping and type of its weights; 16 bits are as they were."""
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, Mapping):
        raise _unknown(section, f"of a group whose 'weights' are {abbreviate(weights)}")
    bits, size, kind = weights.get("num_bits"), weights.get("group_size"), weights.get("type", "int")
    if bits == 16 and isinstance(bits, int):
        return ""
    known = bits if isinstance(bits, int) else None
    if (kind, known) == ("float", 4):
        return "nvfp4" if size == 16 else "mxfp4"
    if (kind, known) == ("float", 8):
        return "fp8-block" if weights.get("strategy") == "block" else "fp8"
    if (kind, known) == ("int", 8):
        return "int8" if inputs else "w8a16"
    if (kind, known) == ("int", 4):
        return "int4-g32" if size == 32 else "w4a16"
    raise _unknown(section, f"of {abbreviate(bits)} bits of type {abbreviate(kind)}")


def _excluded(section: Config) -> list[str]:
    patterns: list[str] = []
    for key in ("modules_to_not_convert", "ignore", "exclude_modules", "ignored_layers"):
        patterns += map(str, section.items(key))
    return patterns


def _excludes(pattern: str, role: str, layer: int) -> bool:
    """Whether a pattern keeps the modules of a role in one layer from being quantised."""
    if role == "experts" and re.search(r"mlp\*?$", pattern):
        return False  # where experts stand beside a dense MLP (Gemma 4) this means the MLP alone
    names = [f"{prefix}.{layer}.{module}" for prefix in _PREFIXES for module in SAMPLES[role]]
    if pattern.startswith("re:"):
        return any(matches(pattern[3:], name) for name in names)
    if "*" in pattern:
        return any(fnmatch.fnmatch(name, pattern) or fnmatch.fnmatch(name, f"{pattern}.*") for name in names)
    return any(f".{pattern}." in f".{name}." for name in names)  # whole path components, so that gate ≠ gate_proj


# ------------------------------------------------------------------ patterns of module names
#
# Regular expressions of a config, matched by hand: a file is never handed to an engine that may run for hours.
#
# What configs write is read exactly: characters, ``.``, ``\.``, ``\d``, ``\w``, ``[0-9a-z]`` with ``*``, ``+`` or
# ``?``, ``^`` and ``$``, and alternatives in brackets, ``(gate|up)_proj``. Of anything else, the longest run of plain
# characters must occur.
#
# A pattern becomes a list of instructions, no longer than the pattern. Matching runs through it once, with the set of
# all positions in the name that the pattern read so far can end at: never more steps than the pattern has characters.


class Instruction(NamedTuple):
    """One step of matching: a kind of character and how often, or a bracket, a bar, an anchor."""

    kind: Literal["atom", "open", "close", "bar", "anchor"]
    text: str = ""
    repeat: str = ""  # "", "*", "+" or "?"


def matches(pattern: str, name: str) -> bool:
    """Whether a name begins with what the pattern describes: ``matches(r".*mlp\\.(gate|up)_proj", "a.mlp.up_proj")``"""
    program = compiled(pattern)
    if program is None:
        plain = _longest_plain_text(pattern)
        return len(plain) > 1 and plain in name
    return _run(program, name) != 0


@functools.lru_cache(maxsize=1000)
def compiled(pattern: str) -> tuple[Instruction, ...] | None:
    """The instructions of a pattern; None if it is too long or has anything that is not understood."""
    if len(pattern) > MAX_PATTERN_LENGTH:
        return None
    program, depth = [], 0
    for token in _TOKEN.finditer(pattern):
        kind = token.lastgroup if token["atom"] is None else "atom"
        depth += (kind == "open") - (kind == "close")
        if kind == "other" or depth < 0 or (kind == "bar" and depth == 0):
            return None
        if kind == "atom" and re.match(r"\\[a-ce-vx-zA-Z0-9]", token["atom"]):
            return None  # a class of characters other than \d and \w
        program.append(Instruction(kind, token["atom"] or token[0], token["repeat"] or ""))  # type: ignore[arg-type]
    return tuple(program) if depth == 0 else None


@functools.lru_cache(maxsize=1000)
def _longest_plain_text(pattern: str) -> str:
    """The longest run of letters, digits and underscores in a pattern, without its classes such as ``\\d``."""
    return max(re.findall(r"\w+", re.sub(r"\\[a-zA-Z]", " ", pattern)), key=len, default="")


def _run(program: tuple[Instruction, ...], name: str) -> int:
    """All positions that a match can end at, as a set of bits: bit i is the position before ``name[i]``.

    In brackets, every alternative begins at the positions where the bracket was opened; at its end they are joined.
    """
    positions = 1
    brackets: list[tuple[int, int]] = []  # positions at the opening, and those at the ends of the alternatives so far
    for step in program:
        if step.kind == "atom":
            positions = advance(positions, _places(step.text, name), step.repeat)
        elif step.kind == "anchor":
            positions &= 1 if step.text == "^" else 1 << len(name)
        elif step.kind == "open":
            brackets.append((positions, 0))
        else:
            opening, ends = brackets.pop()
            if step.kind == "bar":
                brackets.append((opening, ends | positions))
                positions = opening
            else:
                positions |= ends
    return positions


def advance(positions: int, places: int, repeat: str) -> int:
    """Positions after one character that is at ``places``, repeated or not; all three are sets of bits.

    ``advance(0b0001, 0b0111, "+")  # 0b1110``: from position 0 over up to three such characters
    """
    once = (positions & places) << 1
    if repeat == "":
        return once
    if repeat == "?":
        return positions | once
    start = once if repeat == "+" else positions
    # Adding to a run of ones lets a carry ripple from each start to the bit behind the run; xor leaves what it passed.
    return (((start & places) + places) ^ places) | start


@functools.lru_cache(maxsize=20_000)
def _places(atom: str, name: str) -> int:
    """Where in a name a character of one kind is, as a set of bits: ``_places("a", "banana")  # 0b101010``"""
    return sum(1 << i for i, character in enumerate(name) if _fits(atom, character))


def _fits(atom: str, character: str) -> bool:
    if atom == ".":
        return True
    if atom == "\\d":
        return character.isdigit()
    if atom == "\\w":
        return character.isalnum() or character == "_"
    if atom.startswith("["):
        ranges = re.findall(r"(.)-(.)", atom[1:-1])
        single = re.sub(r".-.", "", atom[1:-1])
        return character in single or any(low <= character <= high for low, high in ranges)
    return character == atom[-1]
