"""Decoding methods from the words of a request: speculative decoding and LoRA adapters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import catalog
from .errors import BadValue, UnknownName, positive, whole
from .graph import Model
from .lora import USUAL
from .spec import Lora, Speculation
from .timing import accepted

METHODS = ("draft_model", "ngram", "mtp")
_KEYS = ("method", "model", "num_speculative_tokens", "acceptance_rate", "acceptance_length")
_OWN = {"deepseek_mtp": "mtp", "eagle": "mtp", "eagle3": "mtp", "qwen3_next_mtp": "mtp", "draft": "draft_model"}


def speculation(value: str | Mapping[str, Any] | None, model: Model, name: str) -> Speculation | None:
    """vLLM's ``--speculative-config``: JSON with method, model, num_speculative_tokens, and how much is accepted.

    ``{"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.8}``; without a rate or a length the measured
    length of the model is taken where one is known, else a rate of 0.7 is assumed.
    """
    if not value:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise BadValue(f"--speculative-config is not valid JSON: {error}") from None
    if not isinstance(value, Mapping):
        raise BadValue(f"--speculative-config must be a JSON object, not {value!r}")
    for key in value:
        if key not in _KEYS:
            raise UnknownName("key of --speculative-config", key, _KEYS)
    given = str(value.get("method", "draft_model" if value.get("model") else "mtp"))
    method = _OWN.get(given, given)
    if method not in METHODS:
        raise UnknownName("speculative method", given, METHODS)
    if method == "draft_model" and not value.get("model"):
        raise BadValue("--speculative-config with a draft model needs its name as 'model'")
    if method == "mtp" and not model.extras:
        raise BadValue(f"{name} has no multi-token-prediction module; give a draft 'model' or method 'ngram'")
    drafted = whole("num_speculative_tokens", value.get("num_speculative_tokens", 1 if method == "mtp" else 3), most=64)
    length, source = _length(value, drafted, name)
    return Speculation(method=method, model=str(value.get("model", "")), num_speculative_tokens=drafted,  # type: ignore[arg-type]
                       acceptance_length=length, source=source)  # fmt: skip


def _length(value: Mapping[str, Any], drafted: int, name: str) -> tuple[float, str]:
    """Tokens per step: given, from a given rate, measured, or assumed."""
    if "acceptance_length" in value:
        positive("acceptance_length", value["acceptance_length"], drafted + 1)
        return float(value["acceptance_length"]), "given"
    if "acceptance_rate" in value:
        positive("acceptance_rate", value["acceptance_rate"], 1.0)
        return accepted(float(value["acceptance_rate"]), drafted), "given"
    known = catalog.acceptance().get(name, {})
    if str(drafted) in known:
        return float(known[str(drafted)]), "measured"
    return accepted(0.7, drafted), "assumed: each draft is accepted with probability 0.7"


def adapters(rank: int | None, targets: str | Sequence[str] | None, number: int, model: Model) -> Lora | None:
    """``--lora-rank 16 --lora-targets qkv_proj,o_proj --lora-adapters 4``"""
    if rank is None:
        return None
    names = {op.name for block in model.blocks for op in block.ops if op.kind == "linear"}
    words = targets.split(",") if isinstance(targets, str) else list(targets or [t for t in USUAL if t in names])
    for word in words:
        if word not in names:
            raise UnknownName("LoRA target", word, names)
    return Lora(rank=whole("--lora-rank", rank, most=8192), targets=tuple(words),
                adapters=whole("--lora-adapters", number, most=10**6))  # fmt: skip
