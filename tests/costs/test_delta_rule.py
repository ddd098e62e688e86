"""Prompts of gated delta nets by their libraries' kernels: what was timed, what must hold, who is told what."""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from heapq import heapreplace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from inferometer.costs.binding import step_rows
from inferometer.costs.kernels.delta_rule import DeltaRule, Prompts, SequencePrograms, delta_rule, delta_rules
from inferometer.costs.roofline import OpCost
from inferometer.costs.step import Group, Step
from inferometer.inference.request import build_request
from inferometer.specs import catalog

LIBRARIES = [("flashinfer", "h200"), ("flashinfer", "b200"), ("triton", "h100-sxm"), ("triton", "l40s")]


def rule_of(library: str, device: str) -> DeltaRule:
    rule = delta_rule(library, catalog.hardware(device))
    assert rule is not None
    return rule


def micros(library: str, device: str, heads: float, lengths: Sequence[float]) -> float:
    """Microseconds of a call on prompts of some lengths."""
    sums = {"seqs": len(lengths), "tokens": sum(lengths), "squares": sum(n * n for n in lengths)}
    prompts = Prompts.of(heads, **{name: float(value) for name, value in sums.items()})
    return float(rule_of(library, device).seconds(catalog.hardware(device), prompts)) * 1e6


# Public kernel tables (AIConfigurator 095f58a, Apache-2.0): one sequence on any number of heads, and full GPUs.
@pytest.mark.parametrize(
    ("library", "device", "heads", "lengths", "timed"),
    [
        ("flashinfer", "h200", 4, [8192], 392),
        ("flashinfer", "h200", 64, [8192], 398),
        ("flashinfer", "h200", 64, [1024] * 16, 453),
        ("flashinfer", "h200", 48, [2048] * 8, 321),
        ("flashinfer", "b200", 8, [8192], 330),
        ("flashinfer", "b200", 64, [1024] * 16, 395),
        ("triton", "b200", 64, [1024] * 16, 1822),
        ("triton", "h100-sxm", 64, [16384], 2678),
        ("triton", "l40s", 32, [8192], 1942),
    ],
)
def test_calls_that_were_timed(library: str, device: str, heads: int, lengths: list[int], timed: float) -> None:
    assert micros(library, device, heads, lengths) == pytest.approx(timed, rel=0.07)


def test_triton_on_our_own_h200() -> None:
    """vLLM 0.25.1, 32 heads, a torch profile of Qwen3-Next: queries and keys are normalised in it, too."""
    assert micros("triton", "h200", 32, [1024]) == pytest.approx(111, rel=0.05)
    assert micros("triton", "h200", 32, [4096]) == pytest.approx(398, rel=0.13)


@pytest.mark.parametrize(
    ("lengths", "timed"), [([6144, 2048], 258), ([1024, 7168], 296), ([4096, 4096], 179), ([2048] * 4, 101)]
)
def test_the_longest_sequence_decides(lengths: list[int], timed: float) -> None:
    """8 heads on B200, as FlashInfer's authors timed them (pull request 3001); fits saw equal prompts alone."""
    assert micros("flashinfer", "b200", 8, lengths) == pytest.approx(timed, rel=0.07)


@pytest.mark.parametrize(("library", "device"), LIBRARIES)
def test_more_of_anything_never_takes_less(library: str, device: str) -> None:
    lengths, counts, heads = (64, 65, 1000, 1024, 5000, 8192), (1, 2, 3, 8, 17), (4, 8, 12, 64)
    took = np.array([[[micros(library, device, h, [n] * count) for h in heads] for count in counts] for n in lengths])
    for axis in range(3):
        assert (np.diff(took, axis=axis) >= -1e-9).all()


@pytest.mark.parametrize(("library", "device"), LIBRARIES)
def test_one_long_prompt_takes_as_long_as_its_tokens_in_short_ones(library: str, device: str) -> None:
    for heads, parts in itertools.product((4, 16, 64), (2, 4, 8)):
        assert micros(library, device, heads, [8192]) >= micros(library, device, heads, [8192 // parts] * parts) * 0.9
    assert micros(library, device, 8, [8192]) > 1.2 * micros(library, device, 8, [1024] * 8)


def test_arrays_are_as_numbers() -> None:
    for library, device in LIBRARIES:
        hardware, rule = catalog.hardware(device), rule_of(library, device)
        seqs, length = np.array([1.0, 3.0, 0.0, 16.0]), np.array([100.0, 4096.0, 0.0, 64.0])
        sums = {"seqs": seqs, "tokens": seqs * length, "squares": seqs * length**2}
        each = [rule.seconds(hardware, Prompts.of(8.0, **{k: float(v[i]) for k, v in sums.items()})) for i in range(4)]
        np.testing.assert_allclose(rule.seconds(hardware, Prompts.of(8.0, **sums)), each)


def test_uneven_prompts_take_what_a_scheduler_gives_them() -> None:
    """FlashInfer's programs, handed out one by one to SMs that are free. How long the longest is, sums say roughly."""
    rule, device, draws = rule_of("flashinfer", "h200"), catalog.hardware("h200"), np.random.default_rng(7)
    assert isinstance(rule, SequencePrograms)
    off = []
    for _ in range(60):
        lengths = np.maximum(np.exp(draws.normal(6.5, 0.8, draws.integers(1, 33))).round(), 1)
        heads, free = int(draws.choice([4, 8, 16, 32, 64])), [0.0] * int(device.compute_units)
        for length in lengths:
            one = rule.start + rule.cycles * np.ceil(length / 64) / device.clock
            for _ in range(heads):
                heapreplace(free, free[0] + one)
        off.append(micros("flashinfer", "h200", heads, lengths.tolist()) / (rule.fixed + max(free)) / 1e6 - 1)
    assert np.mean(np.abs(off)) < 0.12
    assert abs(np.mean(off)) < 0.05


@pytest.fixture(scope="module")
def benchmark_module() -> Iterator[ModuleType]:
    folder = str(Path(__file__).resolve().parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    module = importlib.import_module("delta_rule")
    yield module
    sys.path.remove(folder)


def test_rows_that_no_fit_saw(benchmark_module: ModuleType) -> None:
    """A third of the error that one constant has, or less, on every GPU and in every engine."""
    assert benchmark_module.written() == benchmark_module.report(), "run benchmarks/delta_rule.py --write"
    for rows in benchmark_module.kept_rows():
        before, after = map(np.abs, benchmark_module.errors(rows))
        if rows.phase == "prompts":
            assert np.median(after) < min(0.13, np.median(before) / 3), rows[:4]
            assert np.mean(after) < 0.19, rows[:4]


def scan_row(model: str, gpu: str, engine: str, step: Step) -> OpCost:
    rows = step_rows(build_request(model, gpu, engine=engine, tensor_parallel_size=8).bind(), step)
    return next(row for row in rows if row.op.kind == "scan")


PROMPT = Step((Group(1, 4096.0),))


@pytest.mark.parametrize(
    ("engine", "gpu", "library"),
    [
        ("vllm@0.16", "h200", "triton"),
        ("vllm@0.17", "h200", "flashinfer"),
        ("vllm@0.21", "b200", "triton"),
        ("vllm@0.22", "b200", "flashinfer"),
        ("vllm", "rtx-pro-6000", "triton"),
        ("sglang", "h200", "triton"),
    ],
)
def test_whose_kernels_an_engine_runs(engine: str, gpu: str, library: str) -> None:
    assert build_request("qwen3.5-35b-a3b", gpu, engine=engine).bind().engine.delta_rule == library


def test_who_has_such_kernels_and_who_keeps_the_constant() -> None:
    """Other vendors were not timed; Kimi's gate is per channel, and lightning attention has no delta rule."""
    assert scan_row("qwen3.5-397b-a17b", "h200", "vllm", PROMPT).origin == "fitted"
    assert scan_row("qwen3.5-397b-a17b", "a100-sxm-80gb", "vllm", PROMPT).origin == "assumed"
    assert not delta_rules(catalog.engine("vllm"), catalog.hardware("mi300x"), 1.0)
    assert not delta_rules(catalog.engine("hf"), catalog.hardware("h200"), 1.0)
    for model in ("kimi-linear-48b-a3b", "minimax-text-01"):
        row = scan_row(model, "h200", "vllm", PROMPT)
        assert row.origin == "assumed"
        assert "prompts" not in row.op.dims


def test_prompts_and_decoding_sequences_add_up() -> None:
    """The small kernels around come once in a step that has both; states are read and written."""

    def seconds(*groups: Group) -> float:
        return float(scan_row("qwen3.5-397b-a17b", "h200", "vllm", Step(groups)).seconds)

    prompt, decoding = Group(1, 4096.0), Group(256, 1.0, 1024.0, 1.0, True)
    fixed = catalog.engine("vllm").kernels["delta_rule"].fixed
    assert seconds(prompt, decoding) == pytest.approx(seconds(prompt) + seconds(decoding) - fixed)
    states = 2 * 256 * 8 * (128 * 128 * 4)
    assert seconds(decoding) - fixed == pytest.approx(states / (0.84 * 4.8e12), rel=0.03)
