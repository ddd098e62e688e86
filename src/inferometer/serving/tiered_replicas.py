"""The KV caches of replicas: blocks alone, prefixes, or prefixes with tiers below; and what tiers were good for.

cache = replica_cache(bound_plan, num_blocks, table, tree, prefix_caching=True)
tier_uses([cache], table, hit_tokens)[1].hit_rate       # of CPU memory, if the plan has it
"""

from __future__ import annotations

from array import array
from collections.abc import Container, Sequence

import numpy as np

from ..costs.binding import BoundPlan
from ..inference.kv_offload import block_bytes, link_bandwidth
from ..specs.structs import KVTier
from .kv_cache import KVCache, PrefixCache, PrefixTree
from .kv_tiers import CacheTier, TieredCache, TierStore, TransferLink
from .outcome import TierUse, merge_tier_series
from .request_table import RequestTable, column
from .sticky_replicas import rows_by_replica
from .trace import Trace


def replica_cache(
    bound_plan: BoundPlan, num_blocks: int, table: RequestTable, tree: PrefixTree | None, prefix_caching: bool
) -> KVCache:
    """The KV cache of one replica, with the tiers of its plan."""
    plan = bound_plan.plan
    if not prefix_caching:
        return KVCache(num_blocks, plan.block_size)
    bytes_each = block_bytes(bound_plan) if plan.kv_offload is not None else 0.0
    if plan.kv_offload is None or tree is None or not bytes_each:
        return PrefixCache(num_blocks, plan.block_size, tree)
    gpus = plan.tensor_parallel_size * plan.pipeline_parallel_size
    tiers = [_tier(bound_plan, tier, gpus, num_blocks, bytes_each, table) for tier in plan.kv_offload.tiers]
    if not table.prompt_tokens:
        table.prompt_tokens = table.prefill_target[:]
        table.tier_tokens = [array("q", [0]) * len(table) for _ in tiers]
    return TieredCache(
        num_blocks,
        plan.block_size,
        tree,
        tiers,
        table.prompt_tokens,
        plan.kv_offload.write_policy,
        plan.kv_offload.prompt_only,
    )


def warm_caches(caches: Sequence[KVCache], trace: Trace, rejected: Container[int] = ()) -> None:
    """What requests before the run have left: shared prompts on every replica, a session's history on one of them.

    Histories are dealt out as sessions are with `session_affinity`; those that came last are the last to be evicted.
    """
    shared, history = trace.warm_shared, trace.warm_history
    if shared is None or history is None:
        return
    parts = rows_by_replica(trace, len(caches)) or [np.arange(n, len(trace), len(caches)) for n in range(len(caches))]
    for cache, rows in zip(caches, parts, strict=True):
        if not isinstance(cache, PrefixCache) or cache.tree is None:
            continue
        own = np.zeros(len(trace), bool)
        own[rows] = True
        tokens = np.where(own, history, shared)
        for i in np.flatnonzero(tokens).tolist():
            if i not in rejected:
                cache.warm(i, int(tokens[i]))
        if isinstance(cache, TieredCache):
            cache.end_warming()


def _tier(
    bound_plan: BoundPlan, tier: KVTier, gpus: int, gpu_blocks: int, bytes_each: float, table: RequestTable
) -> CacheTier:
    """One tier of a replica; what a shared store holds is the same for all."""
    size = tier.size + tier.size_per_gpu * gpus
    blocks = int(size // bytes_each + tier.gpu_ratio * gpu_blocks)
    store = table.tier_stores.setdefault(tier.name, TierStore(blocks)) if tier.name == "shared" else TierStore(blocks)
    read, write = link_bandwidth(bound_plan, tier), link_bandwidth(bound_plan, tier, write=True)
    link = TransferLink(read, write, tier.latency, tier.concurrency, tier.duplex)
    return CacheTier(tier.name, bytes_each, link, store)


def tier_series(caches: Sequence[KVCache], end_s: Sequence[float]) -> dict[str, np.ndarray]:
    """What each tier holds over time, and the bytes that have gone over its link, of all replicas together."""
    series = []
    for cache, end in zip(caches, end_s, strict=True):
        if isinstance(cache, TieredCache):
            cache.log.add(end, cache.content_blocks, cache.tiers)
            time, on_gpu, *rest = np.array(cache.log.rows, float).T
            per_block = cache.tiers[0].block_bytes
            one = {"time_s": time, "gpu_used_bytes": on_gpu * per_block}
            for number, tier in enumerate(cache.tiers):
                used, loaded, stored = rest[3 * number : 3 * number + 3]
                one |= {f"{tier.name}_used_bytes": used * per_block}
                one |= {f"{tier.name}_loaded_bytes": loaded, f"{tier.name}_stored_bytes": stored}
            series.append(one)
    return merge_tier_series(series)


def tier_uses(caches: Sequence[KVCache], table: RequestTable, hit_tokens: int) -> tuple[TierUse, ...]:
    """What each tier held, gave and took, of all replicas together; nothing where there is only the GPU."""
    tiered = [cache for cache in caches if isinstance(cache, TieredCache)]
    if not tiered:
        return ()
    queried = sum(cache.queried_tokens for cache in tiered)
    tokens = [column(each) for each in table.tier_tokens]
    below = [int(each.sum()) for each in tokens]
    per_block = tiered[0].tiers[0].block_bytes
    on_gpu = sum(sum(cache.cached_blocks) for cache in tiered)
    gpu_hits = max(0, hit_tokens - sum(below))
    gpu_tokens = np.maximum(0, column(table.num_cached_tokens) - sum(tokens))
    uses = [
        TierUse(
            name="gpu",
            capacity_bytes=sum(cache.num_blocks for cache in tiered) * per_block,
            used_bytes=on_gpu * per_block,
            hit_tokens=gpu_hits,
            hit_rate=gpu_hits / queried if queried else 0.0,
            request_tokens=gpu_tokens,
        )
    ]
    for number, first in enumerate(tiered[0].tiers):
        same = [cache.tiers[number] for cache in tiered]
        stores = {id(tier.store): tier.store for tier in same}.values()
        read, written = ([tier.link.bytes_sent[k] for tier in same] for k in (0, 1))
        load_s, store_s = ([tier.link.busy_s[k] for tier in same] for k in (0, 1))
        uses.append(
            TierUse(
                name=first.name,
                capacity_bytes=sum(store.num_blocks for store in stores) * per_block,
                used_bytes=sum(store.used_blocks for store in stores) * per_block,
                hit_tokens=below[number],
                hit_rate=below[number] / queried if queried else 0.0,
                request_tokens=tokens[number],
                loaded_bytes=sum(read),
                stored_bytes=sum(written),
                load_s=sum(load_s),
                store_s=sum(store_s),
                evicted_bytes=sum(store.evicted_blocks for store in stores) * per_block,
            )
        )
    return tuple(uses)
