"""Step-3.5 and Step-3.7: full and sliding layers, which may differ in heads, and experts with a shared one."""

from __future__ import annotations

from typing import Any

from ...base.symbols import names as s
from ..blocks import gqa, mlp
from ..graph import Model, Part
from ..operators import elementwise, linear
from .config import Config
from .decoder import decoder, feed_forward, heads, window_span, windows
from .deepseek_v3 import mtp
from .vision import tower

_NORM = "input_layernorm"


def build(config: Config, *, family: str = "step3p7") -> Model:
    """``build(Config({"model_type": "step3p7", "num_attention_groups": 8, "attention_other_setting": {…}, …}))``"""
    c = config.text
    local = windows(c)
    other = c.section("attention_other_setting")
    full, sliding = heads(c), heads(Config({**c.data, **other.data}, other.where) if other else c)
    gated = c.flag("use_head_wise_attn_gate")
    attention = {"": _attention(full, "", gated), "window": _attention(sliding, "window", gated)}
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


def _attention(sizes: dict[str, Any], span: str, gated: bool) -> Part:
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
