"""A network described by hand, in TOML: blocks by name with their sizes, repeated.

    hidden_size = 2048
    vocab_size = 32000
    [[layers]]
    repeat = 24
    blocks = [
      { block = "gqa", num_attention_heads = 16, num_key_value_heads = 4, head_dim = 128, window = 4096 },
      { block = "moe", num_experts = 64, num_experts_per_tok = 4, moe_intermediate_size = 1024 },
    ]

A block's keys are the arguments of the function of that name in `inferometer.network.blocks`; hidden_size is filled in.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from ...base.errors import BadFile, UnknownName
from .. import blocks
from ..graph import Model, Part, Span
from .config import MOST_LAYERS, Config
from .decoder import decoder

PARTS: dict[str, Callable[..., Part]] = {
    "gqa": blocks.gqa,
    "mla": blocks.mla,
    "delta_net": blocks.delta_net,
    "mamba2": blocks.mamba2,
    "mlp": blocks.mlp,
    "moe": blocks.moe,
}
TOP = {
    "name",
    "hidden_size",
    "vocab_size",
    "layers",
    "tie_word_embeddings",
    "max_position_embeddings",
    "dtype",
    "torch_dtype",
    "quantization_config",
}


def build_network(data: Mapping[str, Any], where: str = "network.toml") -> Model:
    """``build_network(tomllib.load(file))``: the network that a TOML description means."""
    config = Config(data, where)
    for key in data:
        if key not in TOP:
            raise UnknownName(f"key in {where}:", key, TOP)
    config.size("hidden_size"), config.size("vocab_size")
    groups = config.items("layers")
    if not groups:
        raise BadFile(f"{where} has no [[layers]]: each needs blocks = [{{ block = 'gqa', … }}, …] and may have repeat")
    spans: dict[str, Span] = {}
    layers: list[tuple[str, Part]] = []
    for number, group in enumerate(groups, start=1):
        here = Config(group if isinstance(group, Mapping) else {}, f"{where}, layers {number}")
        rows = here.items("blocks")
        if not rows:
            raise BadFile(f"{here.where} lacks 'blocks'")
        part: Part | None = None
        for row in rows:
            more = _part(row, config.size("hidden_size"), here.where, spans)
            part = more if part is None else _joined(part, more, here.where)
        assert part is not None
        for key in here.data:
            if key not in ("blocks", "repeat"):
                raise UnknownName(f"key in {here.where}:", key, ("blocks", "repeat"))
        repeat = here.size("repeat", default=1)
        if len(layers) + repeat > MOST_LAYERS:
            raise BadFile(f"{here.where}: more than the maximum of {MOST_LAYERS:,} layers that any network has")
        layers += [("layers", part)] * repeat
    return decoder(config, lambda i: layers[i], family="network", count=len(layers), spans=spans)


def _joined(part: Part, more: Part, where: str) -> Part:
    try:
        return part + more
    except ValueError as error:
        raise BadFile(f"{where}: {error}") from None


def _part(row: Any, hidden: int, where: str, spans: dict[str, Span]) -> Part:
    if not isinstance(row, Mapping) or "block" not in row:
        raise BadFile(f"{where}: every block needs its name, as in {{ block = 'mlp', intermediate_size = 8192 }}")
    name, sizes = str(row["block"]), {k: v for k, v in row.items() if k not in ("block", "window")}
    if name not in PARTS:
        raise UnknownName(f"block in {where}:", name, PARTS)
    function = PARTS[name]
    here = f"{where}, block {name!r}"
    kinds = {"int": int, "bool": bool, "str": str}
    known = inspect.signature(function).parameters
    allowed = {k: p for k, p in known.items() if p.annotation in kinds and k != "span"}
    for key, value in sizes.items():
        if key not in allowed:
            raise UnknownName(
                f"key of block {name!r} in {where}:", key, [*allowed, *(["window"] if "span" in known else [])]
            )
        kind = kinds[allowed[key].annotation]
        if kind is int:
            optional = allowed[key].default == 0 or key.endswith("lora_rank")
            sizes[key] = Config(sizes, here).size(key, least=0 if optional else 1)
        elif not isinstance(value, kind):
            raise BadFile(f"{here}: {key!r} must be a {kind.__name__}, not {value!r}")
    if "window" in row:
        if "span" not in known:
            raise UnknownName(f"key of block {name!r} in {where}:", "window", allowed)
        window = Config(row, where).size("window")
        key = next((k for k, span in spans.items() if span.size == window), f"window{len(spans) or ''}")
        spans[key] = Span("window", window)
        sizes["span"] = key
    if sizes.setdefault("hidden_size", hidden) != hidden:
        raise BadFile(f"{here}: hidden_size {sizes['hidden_size']} is not the network's {hidden}; leave it out")
    missing = [k for k, p in allowed.items() if p.default is inspect.Parameter.empty and k not in sizes]
    if missing:
        raise BadFile(f"{where}: block {name!r} lacks {', '.join(map(repr, missing))}")
    if name == "gqa" and sizes["num_attention_heads"] % sizes["num_key_value_heads"]:
        raise BadFile(f"{here}: num_attention_heads must be a multiple of num_key_value_heads")
    if name == "moe" and sizes["num_experts_per_tok"] > sizes["num_experts"]:
        raise BadFile(f"{here}: num_experts_per_tok must not be more than num_experts")
    try:
        return function(**sizes)
    except (TypeError, ValueError, KeyError) as error:
        raise BadFile(f"{here}: {error} is not possible") from None
