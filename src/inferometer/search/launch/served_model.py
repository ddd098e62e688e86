"""What all servers of a plan have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...specs import catalog
from ...specs.structs import Engine, Speculation
from ..search_result import PoolSpec
from .precision_settings import CacheSetting, Weights, cache_setting, weights


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
