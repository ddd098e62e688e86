"""The same requests with more and more CPU memory below the GPU: what each size does to latencies and hits.

rows = tier_size_rows([0, 64], {0: result, 64: other})      # of results of `simulate_and_summarize`
tier_sizes_sentence(rows)   # '64 GiB of CPU memory cut TTFT p90 from 4.10 s to 1.30 s; …'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..base.errors import BadValue
from ..base.ranges import numbers
from ..base.units import milliseconds, percent

MOST_SIZES = 100
CLOSE = 0.05  # of the best p90: a smaller size that is as near is enough
KEYS = (
    *("mean_ttft_ms", "p90_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p90_e2el_ms"),
    *("output_throughput", "request_goodput", "prefix_cache_hit_rate"),
)


def parse_tier_sizes(given: Any) -> list[float]:
    """GiB, rising, without memory first: ``parse_tier_sizes("16:64:x2")  # [0.0, 16.0, 32.0, 64.0]``"""
    sizes = sorted({0.0, *map(float, numbers("`kv_offloading_sizes`", given, whole=False))})
    if sizes[0] < 0 or sizes[-1] > 1e6 or len(sizes) > MOST_SIZES:
        raise BadValue(
            f"`kv_offloading_sizes` must be at most {MOST_SIZES - 1} sizes from 0 to 1,000,000 GiB",
            field="kv_offloading_sizes",
        )
    return sizes


def tier_size_rows(sizes: Sequence[float], results: Mapping[float, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A row for each size: its latencies, and the share of prompt tokens that CPU memory had."""
    rows = []
    for size in sizes:
        tiers = {tier["name"]: tier for tier in results[size]["kv_tiers"]}
        cpu = tiers.get("cpu", {})
        rows.append(
            {
                "kv_offloading_size": size,
                **{key: results[size].get(key) for key in KEYS},
                "cpu_hit_rate": cpu.get("hit_rate", 0.0),
                "loaded_bytes": cpu.get("loaded_bytes", 0.0),
                "stored_bytes": cpu.get("stored_bytes", 0.0),
            }
        )
    return rows


def tier_sizes_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """What memory is good for: the smallest size that is nearly as good as the best, and what it changes."""
    key = "p90_ttft_ms"
    measured = [row for row in rows if row[key] is not None]
    if len(measured) < 2:
        return ""
    none, best = measured[0], min(row[key] for row in measured)
    enough = next(row for row in measured if row[key] <= best * (1 + CLOSE))
    if enough is none:
        return f"CPU memory changes TTFT p90 by less than {percent(CLOSE)}: {milliseconds(none[key])} without it"
    cut = (
        f"{enough['kv_offloading_size']:g} GiB of CPU memory cut TTFT p90 from {milliseconds(none[key])} to "
        f"{milliseconds(enough[key])}, and {percent(enough['cpu_hit_rate'])} of prompt tokens come from there"
    )
    more = [row for row in measured if row["kv_offloading_size"] > enough["kv_offloading_size"]]
    return cut + (f"; more than that changes it by less than {percent(CLOSE)}" if more else "")
