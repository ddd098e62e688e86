"""How FlashAttention 3's decode kernels spread contexts over SMs: against calls that were timed, and piece by piece."""

from __future__ import annotations

import csv
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from inferometer.costs.kernels.registry import read_profile
from inferometer.costs.kernels.surfaces import SplitTiles

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_uneven_attention.csv"


def splits(dim: int, cache: str = "") -> SplitTiles:
    profile = read_profile("h200", "measured")
    assert profile is not None
    found = profile.splits("decode_attention", f"{dim}{cache}")
    assert found is not None
    return found


def timed() -> list[dict[str, Any]]:
    with ROWS.open(newline="") as file:
        return [
            {
                "kv_heads": int(row["kv_heads"]),
                "dim": int(row["head_dim"]),
                "contexts": [int(x) for x in row["contexts"].split()],
                "own": float(row["own_s"]),
                "even": float(row["even_s"]),
            }
            for row in csv.DictReader(file)
        ]


def scheduled(tiles: SplitTiles, contexts: list[float], heads: int) -> float:
    """Seconds of a call whose pieces are given out one by one, as its scheduler does."""
    blocks = np.ceil(np.asarray(contexts) / tiles.block).astype(int)
    longest = max(1, int(np.ceil(blocks.sum() * tiles.spare * heads / tiles.at_once)))
    free = [0.0] * int(tiles.at_once)
    for own in blocks.tolist():
        number = int(min(-(-own // longest), tiles.most))
        each = -(-own // number)
        for _ in range(heads):
            for k in range(number):
                heappush(free, heappop(free) + tiles.start + tiles.each * max(0, min(each, own - k * each)))
    return max(free)


def call(tiles: SplitTiles, pieces: float, contexts: list[float], heads: int, dim: int) -> float:
    return float(tiles._call(pieces, sum(contexts) * heads * 2 * dim * tiles.width * tiles.read))


def test_pieces_given_out_one_by_one_take_what_was_timed() -> None:
    off = []
    for row in timed():
        tiles, heads, dim = splits(row["dim"]), row["kv_heads"], row["dim"]
        for contexts, took in (
            (row["contexts"], row["own"]),
            ([np.mean(row["contexts"])] * len(row["contexts"]), row["even"]),
        ):
            pieces = scheduled(tiles, contexts, heads)
            off.append(call(tiles, pieces, contexts, heads, dim) / took - 1)
    assert len(off) > 1000 and np.mean(np.abs(off)) < 0.035 and abs(np.mean(off)) < 0.01


@pytest.mark.parametrize("seqs", [2, 3, 6, 8, 10, 12, 16, 18, 24, 32, 64, 128])
def test_the_mean_of_mixed_batches_is_that_of_a_scheduler(seqs: int) -> None:
    tiles, rng = splits(128), np.random.default_rng(seqs)
    for heads in (2, 4, 8, 16):
        for mean in (300.0, 1000.0, 3000.0, 8000.0):
            took = []
            for _ in range(6):
                contexts = rng.lognormal(0.0, 0.6, seqs)
                contexts = np.maximum(16.0, contexts * mean / contexts.mean()).tolist()
                took.append(call(tiles, scheduled(tiles, contexts, heads), contexts, heads, 128))
            ours = call(tiles, float(tiles._mixed(float(seqs), mean, float(heads))), [mean] * seqs, heads, 128)
            assert ours == pytest.approx(np.mean(took), rel=0.16), (heads, mean)


def dims(seqs: Any, context: Any, uniform: float, heads: float = 8.0) -> dict[str, Any]:
    kv = seqs * context
    return {"seqs": seqs, "kv": kv, "kv_heads": heads, "qk_dim": 128.0, "v_dim": 128.0, "uniform_lengths": uniform}


def test_tables_of_powers_of_two_stay_as_they_are() -> None:
    for seqs in (1.0, 4.0, 32.0, 256.0):
        for context in (128.0, 1024.0, 8192.0):
            assert splits(128).factor(dims(seqs, context, 1.0)) == pytest.approx(1.0)


def test_six_sequences_may_take_longer_than_eight_would_by_the_table() -> None:
    """Six of eight KV heads at 2,854 positions: 33.4 µs of one length, where a line from 4 to 8 says 27."""
    tiles = splits(128)
    assert 1.15 < float(tiles.factor(dims(6.0, 2854.0, 1.0))) < 1.5
    assert float(tiles.factor(dims(5.0, 1168.0, 1.0))) < 1.05
    assert 1.05 < float(tiles.factor(dims(14.0, 1174.0, 0.0))) < 1.3


def test_blocks_of_an_8_bit_cache_have_160_positions() -> None:
    """150 positions are one of them, where a table that has 128 and 256 says two; 161 are two."""
    one, two = (float(splits(128, "-fp8").factor(dims(512.0, context, 1.0))) for context in (150.0, 161.0))
    assert one == pytest.approx(0.74, abs=0.02) and two == pytest.approx(1.0)
    assert splits(128).factor(dims(512.0, 150.0, 1.0)) == pytest.approx(1.0)


def test_numbers_and_arrays_agree() -> None:
    tiles, seqs, context = (
        splits(128),
        np.array([0.0, 1.0, 6.0, 13.0, 100.0]),
        np.array([100.0, 700.0, 3000.0, 90.0, 9e4]),
    )
    for uniform in (0.0, 1.0):
        many = tiles.factor(dims(seqs, context, uniform))
        each = [tiles.factor(dims(float(n), float(c), uniform)) for n, c in zip(seqs, context, strict=True)]
        assert np.allclose(many, each) and (many > 0).all()


def test_a_mixed_batch_takes_longer_the_more_it_has() -> None:
    tiles, contexts = splits(128), np.arange(64.0, 20000.0, 37.0)
    for heads in (1.0, 4.0, 8.0):
        for seqs in range(1, 130):
            assert (np.diff(tiles._mixed(float(seqs), contexts, heads)) > -1e-9).all(), (heads, seqs)
