"""What all servers of a plan have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ...specs.structs import Engine, Speculation
from ..search_result import PoolSpec


class ServedModel(NamedTuple):
    """What the commands of all pools have in common."""

    name: str  # a Hugging Face id or a path
    own_quantization: bool  # weights are as the checkpoint has them
    own_kv_cache_dtype: bool  # so is the KV cache
    max_model_len: int
    gpus_per_node: int
    speculation: Speculation | None = None
    engines: Mapping[tuple[str, str], Engine] = {}  # (engine, role of a pool) -> the engine with its defaults there
    memory_shares: Mapping[str, float] = {}  # engine -> share of memory that it was given

    def flags(self, engine: str, pool: PoolSpec, values: Mapping[str, tuple[str, Any]]) -> list[Any]:
        """Figures of an engine as flags, where they differ from its defaults.

        ``model.flags("vllm", pool, {"max_num_seqs": ("--max-num-seqs", 64)})  # ['--max-num-seqs', 64]``
        """
        own = self.engines.get((engine, pool.role))
        differs = [pair for name, pair in values.items() if own is None or getattr(own, name) != pair[1]]
        return [part for pair in differs for part in pair]

    def memory_flag(self, engine: str, name: str) -> list[Any]:
        """The share of memory as a flag, where it was given."""
        return [name, self.memory_shares[engine]] if engine in self.memory_shares else []
