"""Decoding methods: speculative decoding (its config, what is accepted, the plan of the draft model) and LoRA adapters.

parse_speculation('{"method": "mtp", "num_speculative_tokens": 1}', model, "deepseek-v3").acceptance_length
draft_plan(bound_plan)        # the draft model, or the model's own prediction module, bound on the same machine
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..base.cache import cache_by_identity
from ..base.errors import BadFile, BadValue, UnknownName, abbreviate, about, check_int, check_positive, is_number
from ..base.files import user_path
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan, bind
from ..network import families
from ..network.adapters import DEFAULT_TARGETS
from ..network.families.network_file import build_network
from ..network.graph import Block, Model
from ..specs import catalog
from ..specs.structs import Engine, Lora, Plan, Speculation

ASSUMED = 0.7  # probability that a draft is accepted, where nothing is known
_ASSUMPTION = f"each draft is accepted with probability {ASSUMED}"
METHODS = ("draft_model", "ngram", "mtp")
_KEYS = ("method", "model", "num_speculative_tokens", "acceptance_rate", "acceptance_length")
_OWN = {"deepseek_mtp": "mtp", "qwen3_next_mtp": "mtp", "draft": "draft_model"}
HEADS = ("eagle", "eagle3")  # trained for one model, with weights of their own


@about("speculative_config")
def parse_speculation(value: str | Mapping[str, Any] | None, model: Model, name: str) -> Speculation | None:
    """vLLM's ``speculative_config``: JSON with method, model, num_speculative_tokens, and how much is accepted.

    ``{"method": "mtp", "num_speculative_tokens": 1, "acceptance_rate": 0.8}``; without a rate or a length the measured
    length of the model is taken where one is known, else a rate of 0.7 is assumed.
    """
    if value is None:
        return None
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise BadValue(f"`speculative_config` is not valid JSON: {abbreviate(str(error))}") from None
    if not isinstance(value, Mapping):
        raise BadValue(f"`speculative_config` must be a JSON object, not {abbreviate(value)}")
    for key in value:
        if key not in _KEYS:
            raise UnknownName("key of `speculative_config`", key, _KEYS)
    draft = value.get("model") or ""
    given = str(value.get("method") or ("draft_model" if draft else "mtp"))
    method = "draft_model" if given in HEADS else _OWN.get(given, given)
    if method not in METHODS:
        raise UnknownName("speculative method", given, (*METHODS, *HEADS))
    if given in HEADS and not draft:
        raise BadValue(
            f"method {given!r} drafts with a separate head: give its config as 'model', with its "
            "acceptance_length; the model's own prediction module is method 'mtp'"
        )
    if method == "draft_model" and not draft:
        raise BadValue("`speculative_config` with a draft model needs its name as 'model'")
    if method == "mtp" and not model.extras:
        raise BadValue(f"{name} has no multi-token-prediction module; give a draft 'model' or method 'ngram'")
    drafted = check_int(
        "'num_speculative_tokens'", value.get("num_speculative_tokens", 1 if method == "mtp" else 3), most=64
    )
    length, source = _length(value, drafted, name, given if given in HEADS else method)
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
    return accepted(ASSUMED, drafted), f"assumed: {_ASSUMPTION}"


def acceptance_warnings(speculation: Speculation | None) -> list[str]:
    """A warning where the acceptance was assumed, not measured."""
    if speculation is None or speculation.source != f"assumed: {_ASSUMPTION}":
        return []
    return [f"speculative decoding: {_ASSUMPTION} is assumed; give acceptance_rate or acceptance_length"]


def parse_lora(rank: int | None, targets: str | Sequence[str] | None, number: int, model: Model) -> Lora | None:
    """``parse_lora(16, "qkv_proj,o_proj", 4, model).targets  # ('qkv_proj', 'o_proj')``"""
    if rank is None:
        if targets is not None or number != 1:
            name = "lora_targets" if targets is not None else "lora_adapters"
            raise BadValue(f"`{name}` needs `lora_rank`")
        return None
    names = {op.name for block in model.blocks for op in block.ops if op.kind == "linear"}
    defaults = [t for t in DEFAULT_TARGETS if t in names]
    if targets is None and not defaults:
        raise BadValue(
            f"the model has none of the default LoRA targets; choose from `lora_targets`: {', '.join(sorted(names))}"
        )
    targeted = targets.split(",") if isinstance(targets, str) else defaults if targets is None else targets
    if not isinstance(targeted, Sequence) or not targeted or not all(isinstance(name, str) for name in targeted):
        raise BadValue(f"`lora_targets` must be names separated by commas, not {abbreviate(targets)}")
    for name in targeted:
        if name not in names:
            raise UnknownName("LoRA target", name, names, field="lora_targets")
    return Lora(
        rank=check_int("lora_rank", rank, most=8192),
        targets=tuple(dict.fromkeys(targeted)),
        adapters=check_int("lora_adapters", number, most=10**6),
    )


# ------------------------------------------------------------------ the model that drafts


def draft_plan(bound_plan: BoundPlan) -> BoundPlan:
    """The draft model bound on the same machine: a smaller one, or the model's own prediction modules with its head."""
    spec = bound_plan.plan.speculation
    assert spec is not None
    if spec.method == "mtp":
        return bound_plan._replace(model=_modules(bound_plan.model), engine=_draft_engine(bound_plan.engine))
    small, roles = _draft_model(spec.model, _last_written(spec.model), bound_plan.plan.dtype, bound_plan.hf_token)
    plan = msgspec.structs.replace(
        _draft_layout(bound_plan.plan), quantization=precision.summary(roles, bound_plan.plan.dtype)
    )
    drafter = bind(small, bound_plan.device, _draft_engine(bound_plan.engine), plan, roles=roles)
    return drafter._replace(
        sources=bound_plan.sources
    )  # the same machine and layout, and the efficiencies given for them


def _draft_engine(engine: Engine) -> Engine:
    """The engine of steps inside of a step: while drafting, the host does not go round again."""
    return msgspec.structs.replace(engine, step_floor=0.0, step_floor_per_sequence=0.0, step_floor_per_state_group=0.0)


def draft_reason(bound_plan: BoundPlan) -> str:
    """Why the layout does not suit the model that drafts, as a sentence; empty if it does, or if no model drafts."""
    spec = bound_plan.plan.speculation
    if spec is None or spec.method != "draft_model":
        return ""
    why = parallelism.illegal_reason(draft_plan(bound_plan).model, _draft_layout(bound_plan.plan), bound_plan.device)
    return f"{spec.model} cannot be the draft model here: {why}" if why else ""


def _draft_layout(plan: Plan) -> Plan:
    """The plan of a model that drafts: whole on every stage, without adapters and on the device."""
    return msgspec.structs.replace(plan, speculation=None, lora=None, cpu_offload_bytes=0.0, pipeline_parallel_size=1)


@functools.lru_cache(maxsize=16)
def _draft_model(name: str, stamp: float, dtype: str, token: str | None) -> tuple[Model, dict[str, str]]:
    """A model to draft with, and its precisions: what its config or its name declares."""
    entry = catalog.model(name, token)
    small = (build_network if entry.network else families.build)(entry.config, entry.source or entry.name)
    if small.kind != "decoder":
        raise BadValue(f"{name} is a {small.kind} model: only a decoder can draft tokens")
    declared = entry.quantization if entry.quantization and not small.quantization else None
    return small, precision.precision_by_role(small, dtype, declared)


def _last_written(name: str) -> float:
    """When a local model was last written, so that one that was edited is read again; 0 for any other name."""
    try:
        path = user_path(name)
        return max(p.stat().st_mtime for p in (path, path / "config.json") if p.exists())
    except (BadFile, OSError, ValueError):
        return 0.0


@cache_by_identity(64)
def _modules(model: Model) -> Model:
    """One prediction module between embedding and head, which it shares with the model."""
    ends = [b for b in model.blocks if b.stage in ("embed", "head")]
    one = tuple(msgspec.structs.replace(b, layers=(0,)) for b in model.extras)
    blocks: tuple[Block, ...] = (ends[0], *one, ends[-1])
    return msgspec.structs.replace(model, blocks=blocks, num_layers=1, vision=None)
