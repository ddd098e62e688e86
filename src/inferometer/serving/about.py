"""What a run was about, for its header and its JSON: model, machine, engine, requests."""

from __future__ import annotations

from typing import Any


def described(model: str, gpu: str, words: dict[str, Any], traffic: str, count: int) -> dict[str, Any]:
    """The labels of a checked request, and what it warns of; a bad word is an error here, before anything is run."""
    from ..request import request

    asked = request(model, gpu, **words)
    plan = asked.plan
    label = asked.device.label or asked.device.name
    kv = "" if plan.kv_cache_dtype == plan.dtype else f", KV {plan.kv_cache_dtype}"
    return {
        "model": asked.model.name, "quantization": f"{plan.quantization}{kv}", "gpu": asked.device.name,
        "gpus": plan.gpus, "machine": f"{plan.gpus} × {label}", "engine": asked.engine.label or asked.engine.name,
        "engine_name": asked.engine.name, "frontend": plan.frontend, "num_prompts": count, "traffic": traffic,
        "warnings": list(asked.warnings),
    }  # fmt: skip
