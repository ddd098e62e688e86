"""How much CPU memory buys which TTFT: the rows, the sentence, the command; and what a search prints."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Ran

from inferometer import search
from inferometer.base.errors import BadValue
from inferometer.serving.tier_sizes import parse_tier_sizes, tier_sizes_sentence


def row(size: float, p90: float | None, hits: float = 0.5) -> dict[str, float | None]:
    return {"kv_offloading_size": size, "p90_ttft_ms": p90, "cpu_hit_rate": hits}


def test_the_smallest_size_that_is_enough() -> None:
    sentence = tier_sizes_sentence([row(0, 4100.0), row(16, 3000.0), row(64, 1300.0), row(256, 1290.0)])
    assert sentence.startswith("64 GiB of CPU memory cut TTFT p90 from 4.10 s to 1.30 s, and 50")
    assert "more than that" in sentence
    assert "by less than" in tier_sizes_sentence([row(0, 100.0), row(64, 98.0)])
    assert tier_sizes_sentence([row(0, None), row(64, 98.0)]) == ""


def test_sizes_begin_with_none() -> None:
    assert parse_tier_sizes("16:64:x2") == [0, 16, 32, 64]
    with pytest.raises(BadValue, match="from 0 to"):
        parse_tier_sizes("-1,4")


def test_the_command_compares_sizes(run: Callable[..., Ran]) -> None:
    load = ("--num-prompts", "40", "--request-rate", "40", "--turns", "4", "--input-len", "200", "--output-len", "8")
    few = ("--num-gpu-blocks-override", "150", "--kv-offloading-sizes", "1")
    result = run("simulate", "llama-3.2-1b", "--gpu", "h200", *load, *few, "--json").json
    none, some = result["kv_offloading_sizes"]
    assert (none["kv_offloading_size"], some["kv_offloading_size"]) == (0, 1)
    assert none["cpu_hit_rate"] == 0 and some["cpu_hit_rate"] > 0.1 and some["loaded_bytes"] > 0
    assert result["kv_tiers"][1]["hit_rate"] == some["cpu_hit_rate"]
    refused = run("simulate", "llama-3.2-1b", *few, "--kv-offloading-size", "3")
    assert refused.code == 2 and "leave out" in refused.err


@pytest.mark.slow
def test_commands_of_a_search_carry_the_memory() -> None:
    one = {"quantization": "fp8", "kv_cache_dtype": "auto", "max_num_seqs": 64, "max_num_batched_tokens": 8192}
    load = {"request_rate": 0.5, "input_len": 500, "output_len": 20}
    result = search(
        "llama-3.1-8b", "l40s", num_gpus=1, kv_offloading_size="64", mode="aggregated", finalists=1, **one, **load
    )
    assert result.winner is not None and result.winner.pools[0].kv_offloading_size == 64
    commands = {engine: " ".join(lines) for engine, lines in result.winner.commands.items()}
    assert "--kv-offloading-size 64" in commands["vllm"]
    assert "--enable-hierarchical-cache --hicache-size 69" in commands["sglang"]
    assert f'"host_cache_size": {64 * 2**30}' in commands["trtllm"]
    assert "+ 64 GiB" in result.winner.label
    with pytest.raises(BadValue, match="leave out"):
        search("llama-3.1-8b", "l40s", num_gpus=1, kv_tiers="disk:size=1", **load)
