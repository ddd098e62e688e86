"""What all servers of a plan have in common, and how long a sequence they take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec

from ...inference.memory import memory_table
from ...inference.request import Request
from ...inference.workload import batch_shape_of
from ...specs import catalog
from ...specs.structs import Engine, Speculation, Workload
from ..search_result import PoolSpec
from .precision_settings import CacheSetting, Weights, cache_setting, weights

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
    length_limit: int = 0  # tokens of a sequence that the servers must be told; 0: the model's own
    length_reason: str = ""
    max_len: int = 0  # of a sequence: the limit, or the model's own
    speculation: Speculation | None = None
    engines: Mapping[tuple[str, str], Engine] = {}  # (engine, role of a pool) -> the engine with its defaults there
    memory_shares: Mapping[str, float] = {}  # engine -> share of memory that it was given

    def engine(self, name: str, pool: PoolSpec) -> Engine:
        """An engine with its version and its defaults for a pool."""
        return self.engines[name, pool.role]

    def weights(self, name: str, pool: PoolSpec) -> Weights:
        """What an engine serves and is told so that the weights are as the pool has them."""
        return weights(self.engine(name, pool), self.name, self.dtype, self.quantizations, pool.quantization)

    def cache_setting(self, name: str, pool: PoolSpec) -> CacheSetting | None:
        """What an engine is told so that the KV cache is as the pool has it; None: it cannot."""
        engine = self.engine(name, pool)
        dtype = pool.quantization if pool.quantization in catalog.UNQUANTIZED else self.dtype
        auto = self.kv_cache_dtype or engine.auto_cache_dtype or engine.cache_dtype.get(pool.quantization, dtype)
        if pool.kv_cache_dtype == auto:
            return CacheSetting(precision=auto, kv_cache_dtype="", source="what it takes by itself")
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
    """The longest sequence; ``limit``: what servers must be told, 0 where the model's own length fits."""

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
