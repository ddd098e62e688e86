"""What all servers of a plan have in common: the model in its precisions, and how long a sequence they take.

Our names of precisions are not the engines': what each of them takes, by version, is data (data/launch): a flag, a
checkpoint that is published or to be made, or a reason why not.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from ...base.files import convert
from ...inference.memory import memory_table
from ...inference.request import Request
from ...inference.workload import batch_shape_of
from ...specs import catalog
from ...specs.engine_rules import version_number
from ...specs.server_flags import own_flag
from ...specs.structs import Engine, Speculation, Workload
from ..search_result import PoolSpec
from .processes import SGLANG, TRTLLM, VLLM

MARGIN = 0.9  # of the KV cache that is predicted: an engine that finds less room than one sequence needs does not start
ROUND = 1024


class ServedModel(NamedTuple):
    """What the commands of all pools have in common."""

    name: str  # a Hugging Face id or a path
    gpus_per_node: int  # of the machines
    vendor: str = "NVIDIA"  # of the devices
    architecture: str = ""
    dtype: str = "bf16"  # of the checkpoint
    quantizations: tuple[str, ...] = ()  # what the checkpoint is quantised in
    kv_cache_dtype: str = ""  # that its config asks for
    state_dtype: str = ""  # of recurrent layers, where the user chose one: an engine's word
    length_limit: int = 0  # tokens of a sequence for the servers' flag; 0: the model's own
    length_reason: str = ""
    max_len: int = 0  # of a sequence: the limit, or the model's own
    speculation: Speculation | None = None
    speculative_head: str = ""  # eagle, eagle3: the draft model is a head of that kind
    engines: Mapping[tuple[str, str], Engine] = {}  # (engine, role of a pool) -> the engine with its defaults there
    memory_shares: Mapping[str, float] = {}  # engine -> share of memory that it was given

    def engine(self, name: str, pool: PoolSpec) -> Engine:
        """An engine with its version and its defaults for a pool."""
        return self.engines[name, pool.role]

    def weights(self, name: str, pool: PoolSpec) -> Weights:
        """What an engine serves, and its flags, so that the weights are as the pool has them."""
        return weights(self.engine(name, pool), self.name, self.dtype, self.quantizations, pool.quantization)

    def cache_setting(self, name: str, pool: PoolSpec) -> CacheSetting | None:
        """The flags of an engine with which the KV cache is as the pool has it; None: it cannot."""
        engine = self.engine(name, pool)
        dtype = pool.quantization if pool.quantization in catalog.UNQUANTIZED else self.dtype
        auto = self.kv_cache_dtype or engine.auto_cache_dtype or engine.cache_dtype.get(pool.quantization, dtype)
        if pool.kv_cache_dtype == auto:
            return CacheSetting(precision=auto, kv_cache_dtype="", source="the engine's own default")
        return cache_setting(engine, pool.kv_cache_dtype)

    def cache_dtype(self, name: str, pool: PoolSpec) -> str:
        """The engine's name of the pool's KV cache, '' where it need not be said."""
        setting = self.cache_setting(name, pool)
        return setting.kv_cache_dtype if setting is not None else ""

    def flags(self, engine: str, pool: PoolSpec, values: Mapping[str, tuple[str, Any]]) -> list[Any]:
        """Figures of an engine as flags, where they differ from its defaults.

        ``model.flags("vllm", pool, {"max_num_seqs": ("--max-num-seqs", 64)})  # ['--max-num-seqs', 64]``
        """
        own = self.engine(engine, pool)
        differs = [pair for name, pair in values.items() if getattr(own, name) != pair[1]]
        return [part for pair in differs for part in pair]

    def common_flags(self, engine: str, pool: PoolSpec, dtype: str, length: str, memory: str) -> list[Any]:
        """Flags that engines name differently but that mean the same: 16-bit format, longest sequence, memory."""
        format_name = self.weights(engine, pool).dtype
        flags: list[Any] = [dtype, format_name] if format_name else []
        flags += [length, self.length_limit] if self.length_limit else []
        return flags + ([memory, self.memory_shares[engine]] if engine in self.memory_shares else [])


# ------------------------------------------------------------------ the longest sequence


class ContextLength(NamedTuple):
    """The longest sequence; ``limit``: for the servers' flag, 0 where the model's own length fits."""

    longest: int
    limit: int = 0
    reason: str = ""


def context_length(requests: Iterable[Request], longest_request: int, given: int | None) -> ContextLength:
    """For the pools of a plan: ``context_length([request], 4500, None)  # ContextLength(131072, 0, '')``"""
    plans = list(requests)
    own = min(request.plan.max_model_len for request in plans)
    if given is not None:
        return ContextLength(given, given)
    room = min((_tokens(request) for request in plans), default=own)
    if not own or own <= MARGIN * room:
        return ContextLength(own)
    limit = max(int(MARGIN * room) // ROUND * ROUND, -(-longest_request // 256) * 256)
    limit = min(limit, own)
    reason = (
        f"sequences end at {limit:,} tokens, not at the model's {own:,}: the KV cache has room for about {room:,}; the "
        f"longest request has {longest_request:,}"
    )
    return ContextLength(limit, limit, reason)


def _tokens(request: Request) -> int:
    """Tokens of the longest sequence that the KV cache of one rank holds."""
    bound_plan, length = request.bind(), request.plan.max_model_len
    for _ in range(3):  # layers with windows hold more tokens of longer sequences
        sized = bound_plan._replace(plan=msgspec.structs.replace(bound_plan.plan, max_model_len=length))
        workload = Workload(batch_size=request.plan.data_parallel_size, input_len=max(length - 1, 1), output_len=1)
        tokens = memory_table(sized, batch_shape_of(sized, workload)).max_total_tokens
        if tokens is None or tokens >= length:
            return length if tokens is None else tokens
        length = max(tokens, 2)
    return length


# ------------------------------------------------------------------ precisions

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

    kv_cache_dtype: str  # '' it needs no flag, but see `note`
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
    """What is served, and the engine's flags for its weights."""

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
    if setting is None or setting.instead:
        why = setting.instead if setting is not None else "leave out -q"
        return Weights(model, refusal=f"{engine.label} {engine.version} cannot serve {precision} weights: {why}")
    if stored:
        return Weights(
            model,
            refusal=f"{held}: {engine.label} does not convert it to {precision}. Serve a 16-bit checkpoint of the same "
            f"model, or search without -q {precision}",
        )
    output = f"{model.rstrip('/').rpartition('/')[2]}-{setting.scheme}"
    command = _recipe(setting.recipe or settings.recipe).format(model=model, scheme=setting.scheme, output=output)
    others = "".join(f" (for {one.model} there is {one.id})" for one in _siblings(engine.name, model, precision)[:1])
    return Weights(f"./{output}", note=f"first make a checkpoint in {precision}{others}: {command}")


def cache_setting(engine: Engine, precision: str) -> CacheSetting | None:
    """What an engine calls a precision of the KV cache; None: it has no such one.

    ``cache_setting(vllm, "int8").kv_cache_dtype  # 'int8_per_token_head'``
    """
    return _newest(engine_settings(engine.name).kv_cache, engine, precision)


def published_checkpoint(engine: str, model: str, precision: str) -> PublishedCheckpoint | None:
    """One that an engine reads: ``published_checkpoint("vllm", "Qwen/Qwen3-8B", "w4a16").id  # Qwen/Qwen3-8B-AWQ``"""
    return next((one for one in checkpoints() if one.model == model and _reads(engine, one, precision)), None)


def _siblings(engine: str, model: str, precision: str) -> list[PublishedCheckpoint]:
    """Published checkpoints of the same architecture with other weights: of the instruct model, if this is the base."""
    entry = catalog.catalog_entry(model)
    fitting = [one for one in checkpoints() if _reads(engine, one, precision)]
    return [one for one in fitting if entry is not None and catalog.catalog_entry(one.model) is entry]


def _reads(engine: str, checkpoint: PublishedCheckpoint, precision: str) -> bool:
    """Whether an engine reads a checkpoint; of other owners than the model's, TensorRT-LLM reads ModelOpt's only."""
    owners = ("nvidia", checkpoint.model.partition("/")[0])
    fits = engine != TRTLLM or (checkpoint.id.partition("/")[0] in owners and precision != "w4a16")
    return checkpoint.precision == precision and fits


@functools.cache
def _recipe(name: str) -> str:
    return str(catalog.shipped("launch", "recipes")[name]["command"]).strip()


def _newest(settings: Iterable[T], engine: Engine, precision: str) -> T | None:
    """The first setting of a precision that the engine's version has."""
    version = version_number(engine.version)
    fitting = (one for one in settings if one.precision == precision)
    return next((one for one in fitting if not one.since or version_number(one.since) <= version), None)


# ------------------------------------------------------------------ one change


def spelled_change(name: str, change: Mapping[str, Any], plan: Mapping[str, Any]) -> str:
    """A change of one argument as an engine is given it, '' if it cannot be.

    ``spelled_change("vllm", {"max_cudagraph_capture_size": None}, {})  # 'without --enforce-eager'``
    """
    ((argument, value),) = change.items()
    if argument == "max_cudagraph_capture_size":
        return f"without {'--enforce-eager' if name == VLLM else '--disable-cuda-graph'}"
    flag, settings = own_flag(name, argument), engine_settings(name)
    if argument == "quantization":
        online = next((one.quantization for one in settings.weights if one.precision == value), "")
        return f"{flag} {online}" if flag and online else f"a checkpoint in {value}"
    if argument == "kv_cache_dtype":
        dtype = next((one.kv_cache_dtype for one in settings.kv_cache if one.precision == value), "")
        return f"{flag} {dtype}" if flag and dtype else ""
    if argument == "speculative_config":
        given = f"{flag} '{json.dumps(value)}'" if name == VLLM else ""
        return given if value else f"without {flag}"
    ranks = plan["data_parallel_size"]
    if argument == "enable_expert_parallel":
        counted = f"{flag} {plan['tensor_parallel_size'] * ranks if value else 1}"
        return counted if name != VLLM else flag if value else f"without {flag}"
    of_all = name == SGLANG and ranks > 1 and argument in ("tensor_parallel_size", "max_num_batched_tokens")
    return f"{flag} {value * (ranks if of_all else 1)}" if flag else ""
