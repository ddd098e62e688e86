"""How each engine is told a precision: a flag, a checkpoint that is published or to be made, or not at all.

Our names of precisions are not the engines': what each of them takes, by version, is data (data/launch).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple, TypeVar

import msgspec

from ...base.files import convert
from ...specs import catalog
from ...specs.engine_rules import version_number
from ...specs.structs import Engine
from .processes import TRTLLM

T = TypeVar("T", bound="_Since")


class _Since(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    precision: str
    since: str = ""  # the version that it came with
    source: str


class WeightSetting(_Since, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an engine gets weights in a precision, as data/launch has it."""

    quantization: str = ""  # value of --quantization that converts a 16-bit checkpoint while it is loaded
    scheme: str = ""  # it needs a checkpoint, which `recipe` makes by this scheme
    recipe: str = ""
    instead: str = ""  # it cannot: what to do


class CacheSetting(_Since, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an engine calls a precision of the KV cache."""

    kv_cache_dtype: str  # '' it is told nothing, but see `note`
    note: str = ""


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of data/launch."""

    dtypes: dict[str, str]  # 16- and 32-bit formats
    recipe: str  # makes checkpoints for it
    weights: list[WeightSetting]
    kv_cache: list[CacheSetting]


class PublishedCheckpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A published checkpoint of a model in a precision."""

    model: str
    precision: str
    id: str
    source: str


class Weights(NamedTuple):
    """What is served, and what the engine is told about its weights."""

    model: str
    quantization: str = ""
    dtype: str = ""
    note: str = ""  # what to do before
    refusal: str = ""  # why it cannot be served so


@functools.cache
def engine_settings(name: str) -> EngineSettings:
    """``engine_settings("vllm").weights[0].quantization  # 'fp8'``"""
    return convert(catalog.shipped("launch", name), EngineSettings, f"data/launch/{name}.toml")


@functools.cache
def checkpoints() -> list[PublishedCheckpoint]:
    """All published checkpoints that data/launch/checkpoints.toml names."""
    rows = catalog.shipped("launch", "checkpoints")["checkpoint"]
    return [convert(row, PublishedCheckpoint, "data/launch/checkpoints.toml") for row in rows]


def weights(engine: Engine, model: str, dtype: str, own: Iterable[str], precision: str) -> Weights:
    """How an engine serves a model in a precision; ``own``: those that its checkpoint is quantised in.

    ``weights(vllm, "meta-llama/Llama-3.1-8B", "bf16", (), "fp8").quantization  # 'fp8'``
    """
    stored = sorted(own)
    if precision in stored or (not stored and precision == dtype):
        return Weights(model)
    settings = engine_settings(engine.name)
    held = f"{model} is a checkpoint in {' and '.join(stored)}"
    if precision in settings.dtypes:
        if not stored:
            return Weights(model, dtype=settings.dtypes[precision])
        return Weights(
            model,
            refusal=f"{held}: {engine.label} does not widen it to {precision}. Serve a checkpoint of the same model in "
            f"{precision}, or search without -q {precision}",
        )
    setting = _newest(settings.weights, engine, precision)
    if setting is not None and setting.quantization and not stored:
        return Weights(model, quantization=setting.quantization)
    published = published_checkpoint(engine.name, model, precision)
    if published is not None:
        return Weights(published.id, note=f"{published.id} is {model} in {precision}")
    if stored:
        return Weights(
            model,
            refusal=f"{held}: {engine.label} does not convert it to {precision}. Serve a 16-bit checkpoint of the same "
            f"model, or search without -q {precision}",
        )
    if setting is None or not setting.scheme:
        why = setting.instead if setting is not None else "leave -q away"
        return Weights(model, refusal=f"{engine.label} {engine.version} cannot serve {precision} weights: {why}")
    output = f"{model.rstrip('/').rpartition('/')[2]}-{setting.scheme}"
    command = _recipe(setting.recipe or settings.recipe).format(model=model, scheme=setting.scheme, output=output)
    return Weights(f"./{output}", note=f"make the checkpoint in {precision} first: {command}")


def cache_setting(engine: Engine, precision: str) -> CacheSetting | None:
    """What an engine calls a precision of the KV cache; None: it has no such one.

    ``cache_setting(vllm, "int8").kv_cache_dtype  # 'int8_per_token_head'``
    """
    return _newest(engine_settings(engine.name).kv_cache, engine, precision)


def published_checkpoint(engine: str, model: str, precision: str) -> PublishedCheckpoint | None:
    """A published checkpoint of a model that an engine reads; TensorRT-LLM reads ModelOpt's and the model's owner's."""
    fitting = [one for one in checkpoints() if one.model == model and one.precision == precision]
    if engine == TRTLLM:
        owner = model.partition("/")[0]
        fitting = [one for one in fitting if one.id.partition("/")[0] in ("nvidia", owner) and precision != "w4a16"]
    return fitting[0] if fitting else None


@functools.cache
def _recipe(name: str) -> str:
    return str(catalog.shipped("launch", "recipes")[name]["command"]).strip()


def _newest(settings: Iterable[T], engine: Engine, precision: str) -> T | None:
    """The first setting of a precision that the engine's version has."""
    version = version_number(engine.version)
    fitting = (one for one in settings if one.precision == precision)
    return next((one for one in fitting if not one.since or version_number(one.since) <= version), None)
