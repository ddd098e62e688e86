"""Which layouts are legal for a model, and why one is not."""

from __future__ import annotations

from .graph import Model
from .spec import Hardware, Plan


def reason(model: Model, plan: Plan, device: Hardware) -> str:
    """Why a layout cannot be used, as a sentence; empty if it can: ``"28 heads do not divide by tp 8"``"""
    tp = plan.tensor_parallel_size
    for block in model.blocks:
        heads = block.dims.get("num_attention_heads")
        kv = block.dims.get("num_key_value_heads")
        if block.stage != "layer" or not heads:
            continue
        if heads % tp:
            return f"{int(heads)} attention heads do not divide by tp {tp}"
        if kv and kv % tp and tp % kv:
            return f"{int(kv)} KV heads neither divide by tp {tp} nor can be replicated over it"
    return ""
