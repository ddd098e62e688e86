"""An engine that takes steps without contention on the fast path: `uncontended_run`, `prefix_run`.

engine = FastPathEngine(cost, limits, table, KVCache(1000, 16), source, SCHEDULERS["vllm"])
engine.run()
"""

from __future__ import annotations

from .engine import EngineCore
from .kv_cache import PrefixCache
from .prefix_run import PrefixRun
from .uncontended_run import UncontendedRun

RETRY_STEPS = 256  # steps until an engine that was short of blocks is tried again


class FastPathEngine(EngineCore):
    """An `EngineCore` that takes steps without contention on the fast path, where its scheduler allows it."""

    retry_at_step = 0  # the step before which the fast path need not be tried again

    def _fast_path_applies(self) -> bool:
        """Whether this engine can go this way at all: the scheduler allows it, and nothing ties its steps together."""
        limits = self.limits
        return (
            self.fast_forward
            and self.scheduler.fast_path
            and self.cost.closed_form is not None
            and not limits.ends_on_stop_token
            and (self.tiered is None or (self.tiered.prompt_only and not self.tiered.stores_evicted))
            and not (self._shares_prefixes() and (limits.priority or self.sends_caches))
            and self.table.transferred_tokens is None
            and limits.tokens_per_decode == limits.scheduler_recv_interval == 1
            and limits.prefill_schedule_interval == 1
            and not limits.batch_wait_timeout_iters
        )

    def _shares_prefixes(self) -> bool:
        """Whether requests find blocks of others in the cache."""
        return isinstance(self.kv_cache, PrefixCache) and self.kv_cache.tree is not None

    def _is_uncontended(self) -> bool:
        """Whether no request waits or is about to leave, and all decoding ones have their blocks to the end."""
        if self.waiting or self.prefilling or self.finishing or self.kv_in_transfer or self.loading:
            return False
        if self.steps < self.retry_at_step:
            return False
        cache = self.kv_cache
        may_reuse = isinstance(cache, PrefixCache) and not cache.no_reuse and cache.tree is None
        if may_reuse or self.batch.blocks_to_completion() > cache.free_blocks:
            self.retry_at_step = self.steps + RETRY_STEPS
            return False
        return True

    def _run_uncontended(self, until: float) -> None:
        """Take steps as long as no request has to wait; leaves everything as `_step` would."""
        if not self._is_uncontended():
            return
        assert self.cost.closed_form is not None
        if isinstance(self.kv_cache, PrefixCache) and self.kv_cache.tree is not None:
            PrefixRun(self, self.cost.closed_form, self.kv_cache).run(until)
        else:
            UncontendedRun(self, self.cost.closed_form).run(until)
