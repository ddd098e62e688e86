"""Decoding methods from the words of a request: speculative decoding and LoRA adapters."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..base.errors import BadValue, UnknownName, abbreviate, about, check_int, check_positive, is_number
from ..network.adapters import DEFAULT_TARGETS
from ..network.graph import Model
from ..specs import catalog
from ..specs.structs import Lora, Speculation

ASSUMED = 0.7  # probability that a draft is accepted, where nothing is known
METHODS = ("draft_model", "ngram", "mtp")
_KEYS = ("method", "model", "num_speculative_tokens", "acceptance_rate", "acceptance_length")
_OWN = {"deepseek_mtp": "mtp", "qwen3_next_mtp": "mtp", "draft": "draft_model"}
_HEADS = ("eagle", "eagle3")  # trained for one model, with weights of their own


@about("speculative_config")
def speculation(value: str | Mapping[str, Any] | None, model: Model, name: str) -> Speculation | None:
    """vLLM's ``--speculative-config``: JSON with method, model, num_speculative_tokens, and how much is accepted.

    ``{"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.8}``; without a rate or a length the measured
    length of the model is taken where one is known, else a rate of 0.7 is assumed.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadValue(f"--speculative-config is not valid JSON: {abbreviate(str(error))}") from None
    if not isinstance(value, Mapping):
        raise BadValue(f"--speculative-config must be a JSON object, not {abbreviate(value)}")
    for key in value:
        if key not in _KEYS:
            raise UnknownName("key of --speculative-config", key, _KEYS)
    draft = value.get("model") or ""
    given = str(value.get("method") or ("draft_model" if draft else "mtp"))
    method = "draft_model" if given in _HEADS else _OWN.get(given, given)
    if method not in METHODS:
        raise UnknownName("speculative method", given, (*METHODS, *_HEADS))
    if given in _HEADS and not draft:
        raise BadValue(
            f"method {given!r} drafts with a head of its own: give its config as 'model', with its "
            "acceptance_length; the model's own prediction module is method 'mtp'"
        )
    if method == "draft_model" and not draft:
        raise BadValue("--speculative-config with a draft model needs its name as 'model'")
    if method == "mtp" and not model.extras:
        raise BadValue(f"{name} has no multi-token-prediction module; give a draft 'model' or method 'ngram'")
    drafted = check_int(
        "num_speculative_tokens", value.get("num_speculative_tokens", 1 if method == "mtp" else 3), most=64
    )
    length, source = _length(value, drafted, name, given if given in _HEADS else method)
    return Speculation(
        method=method,  # type: ignore[arg-type]
        model=str(draft),
        num_speculative_tokens=drafted,
        acceptance_length=length,
        source=source,
    )


def accepted(rate: float, drafted: int) -> float:
    """Expected tokens a step when each draft is accepted with probability ``rate``: ``accepted(0.8, 3)  # 2.95``"""
    return drafted + 1.0 if rate >= 1 else (1 - rate ** (drafted + 1)) / (1 - rate)


def _length(value: Mapping[str, Any], drafted: int, name: str, method: str) -> tuple[float, str]:
    """Tokens per step: given, from a given rate, measured, or assumed."""
    length = value.get("acceptance_length")
    if length is not None:
        if not is_number(length) or not 1 <= length <= drafted + 1:
            raise BadValue(
                f"acceptance_length must be between 1 (no draft is accepted) and {drafted + 1} "
                f"(all {drafted} are, and the bonus token), not {abbreviate(length)}"
            )
        return float(length), "given"
    rate = value.get("acceptance_rate")
    if rate is not None:
        check_positive("acceptance_rate", rate, 1.0)
        return accepted(float(rate), drafted), "given"
    known = catalog.acceptance().get((name, method), {})
    if str(drafted) in known:
        return float(known[str(drafted)]), "measured"
    return accepted(ASSUMED, drafted), f"assumed: each draft is accepted with probability {ASSUMED}"


def acceptance_warnings(guess: Speculation | None) -> list[str]:
    """A warning where the acceptance is nobody's measurement."""
    if guess is None or not guess.source.startswith("assumed"):
        return []
    return [
        f"speculative decoding: {guess.source.removeprefix('assumed: ')} is assumed; "
        "give acceptance_rate or acceptance_length"
    ]


def parse_lora(rank: int | None, targets: str | Sequence[str] | None, number: int, model: Model) -> Lora | None:
    """``--lora-rank 16 --lora-targets qkv_proj,o_proj --lora-adapters 4``"""
    if rank is None:
        if targets is not None or number != 1:
            flag = "--lora-targets" if targets is not None else "--lora-adapters"
            raise BadValue(f"{flag} needs --lora-rank: without a rank there are no adapters")
        return None
    names = {op.name for block in model.blocks for op in block.ops if op.kind == "linear"}
    usual = [t for t in DEFAULT_TARGETS if t in names]
    if targets is None and not usual:
        raise BadValue(
            f"the model has none of the usual targets of adapters; name some with --lora-targets: "
            f"{', '.join(sorted(names))}"
        )
    words = targets.split(",") if isinstance(targets, str) else usual if targets is None else targets
    if not isinstance(words, Sequence) or not words:
        raise BadValue(f"--lora-targets must be names with commas between, not {abbreviate(targets)}")
    for word in words:
        if word not in names:
            raise UnknownName("LoRA target", word, names, field="lora_targets")
    return Lora(
        rank=check_int("--lora-rank", rank, most=8192),
        targets=tuple(dict.fromkeys(words)),
        adapters=check_int("--lora-adapters", number, most=10**6),
    )
