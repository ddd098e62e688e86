"""Kinds that only an engine's kernels can run: what they are given, without a GPU and without the engine."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from inferometer.profiling.microbenchmarks import CASES, KernelBench, Library, Missing
from inferometer.profiling.timer import OutOfTime

torch: Any = None  # imported where these tests run: it takes seconds

SSM = {"heads": 4, "value_dim": 8, "key_dim": 16, "groups": 2}
GDN = {"key_heads": 2, "value_heads": 4, "key_dim": 16, "value_dim": 8}


class Engine(Library):
    """Functions by their names in the engine, and what each call of them was given."""

    def __init__(self, **functions: Callable[..., Any]) -> None:
        super().__init__()
        self.functions, self.given = functions, list[dict[str, Any]]()

    def __call__(self, path: str) -> Any:
        name = path.partition(":")[2]
        if name not in self.functions:
            raise Missing(f"no {name}")
        return self.functions[name]

    def answer(self, value: Callable[[dict[str, Any]], Any], *names: str) -> Callable[..., Any]:
        """A function with these parameters that remembers what it is given."""

        def function(*values: Any, **keywords: Any) -> Any:
            given = {**dict(zip(names, values, strict=False)), **keywords}
            self.given.append(given)
            return value(given)

        return function


@pytest.fixture(scope="module", autouse=True)
def _with_torch() -> None:
    global torch
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")


def bench(engine: Engine) -> KernelBench:
    return KernelBench(torch, "cpu", engine, 1e4)


def scanning() -> Engine:
    engine = Engine()
    engine.functions["mamba_chunk_scan_combined_varlen"] = engine.answer(
        lambda given: torch.ones(len(given["cu_seqlens"]) - 1, 4, 8, 16).to(given["state_dtype"]), "x", "dt", "A", "B"
    )
    tuned = SimpleNamespace(best_config=SimpleNamespace(kwargs={"BLOCK_SIZE_M": 64, "BLOCK_SIZE_N": 32}))
    engine.functions["_chunk_scan_fwd_kernel"] = tuned
    return engine


@pytest.mark.slow
def test_a_scan_is_tuned_at_one_chunk_and_no_chunk_has_two_sequences() -> None:
    engine = scanning()
    b = bench(engine)
    ready = CASES["chunk_scan"](b, dtype="fp32", m=80, seqs=2, chunk=16, **SSM)
    tuning, first = engine.given
    assert len(tuning["x"]) == 16 and tuning["cu_chunk_seqlens"].tolist() == [0, 16]
    assert first["cu_seqlens"].tolist() == [0, 40, 80] and first["state_dtype"] == torch.float32
    assert first["cu_chunk_seqlens"].tolist() == [0, 16, 32, 40, 56, 72, 80]
    assert first["last_chunk_indices"].tolist() == [2, 5] and first["seq_idx"].tolist() == [0, 0, 0, 1, 1, 1]
    assert ready.source == "vllm Triton scan 64x32"
    CASES["chunk_scan"](b, dtype="fp32", m=16, seqs=1, chunk=16, **SSM)
    assert len(engine.given) == 3, "tuned once"


def test_nothing_is_tuned_shortly_before_the_end() -> None:
    b = bench(scanning())
    b.deadline = time.monotonic() + 5
    with pytest.raises(Missing):  # no time is what a kernel lacks that is there
        CASES["chunk_scan"](msgspec.structs.replace(b, vllm=Engine()), dtype="bf16", m=16, seqs=1, chunk=16, **SSM)
    with pytest.raises(OutOfTime):
        CASES["chunk_scan"](b, dtype="bf16", m=16, seqs=1, chunk=16, **SSM)
    b.deadline, b.warmed = math.inf, {("chunk_scan", "another"): 100.0}
    CASES["chunk_scan"](b, dtype="bf16", m=16, seqs=1, chunk=16, **SSM)
    b.deadline = time.monotonic() + 50
    with pytest.raises(OutOfTime):  # another took longer than what is left
        CASES["chunk_scan"](b, dtype="bf16", m=32, seqs=1, chunk=32, **SSM)


@pytest.mark.parametrize(
    ("kind", "shape", "function", "sizes"),
    [
        (
            "state_update",
            {"seqs": 3, **SSM},
            "selective_state_update",
            {"state": (4, 4, 8, 16), "dt": (3, 4, 8), "A": (4, 8, 16), "B": (3, 2, 16)},
        ),
        ("conv1d", {"m": 3, "seqs": 3, "n": 64, "k": 4}, "causal_conv1d_update", {"conv_state": (4, 64, 3)}),
        (
            "gdn_decode",
            {"seqs": 3, **GDN},
            "fused_recurrent_gated_delta_rule_packed_decode",
            {"mixed_qkv": (3, 96), "initial_state": (4, 4, 8, 16), "out": (3, 1, 4, 8)},
        ),
    ],
)
def test_updates_leave_the_first_place_alone(
    kind: str, shape: dict[str, Any], function: str, sizes: dict[str, tuple[int, ...]]
) -> None:
    engine = Engine(current_platform=SimpleNamespace(is_device_capability_family=lambda family: False))  # type: ignore[arg-type]
    names = {"state_update": ("state",), "conv1d": ("x", "conv_state")}.get(kind, ())
    engine.functions[function] = engine.answer(lambda given: None, *names)
    ready = CASES[kind](bench(engine), dtype="bf16", **shape)
    given = engine.given[0]
    assert {name: tuple(given[name].shape) for name in sizes} == sizes
    places = next(value for name, value in given.items() if name.endswith("_indices"))
    assert sorted(places.tolist()) == [1, 2, 3] and ready.cold > 0
    with pytest.raises(Missing):
        CASES[kind](bench(Engine()), dtype="bf16", **shape)


def test_open_experts_are_routed_from_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    engine.functions |= {
        "triton_kernel_moe_forward": engine.answer(lambda given: None, "x", "up", "down", "logits"),
        "_swizzle_mxfp4": lambda weight, scale: (weight, "flex", scale),
        "mxfp4_w4a16_moe_quant_config": lambda *scales, **biases: (scales, biases),
        "make_routing_data": engine.answer(lambda given: None, "ids", "shares", "experts"),
    }
    kernels = SimpleNamespace(PrecisionConfig=lambda **fields: fields, FlexCtx=lambda **fields: fields)
    routing = SimpleNamespace(routing=engine.answer(lambda given: None, "logits", "top_k"))
    for name, module in (("matmul_ogs", kernels), ("routing", routing)):
        monkeypatch.setitem(sys.modules, f"triton_kernels.{name}", module)
    monkeypatch.setitem(sys.modules, "triton_kernels", SimpleNamespace())
    shape = {"tokens": 5, "experts": 8, "top_k": 2}
    ready = CASES["moe"](bench(engine), dtype="mxfp4", hidden=64, inner=128, **shape)
    given = engine.given[0]
    assert tuple(given["up"].shape) == (8, 256, 32) and tuple(given["down"].shape) == (8, 64, 64)
    assert tuple(given["logits"].shape) == (5, 8) and given["topk"] == 2 and given["renormalize"]
    assert given["quant_config"][1]["w1_bias"].shape == (8, 256) and len(ready.calls) == 8
    CASES["moe_routing"](bench(engine), dtype="bf16", **shape)
    CASES["moe_routing"](bench(engine), dtype="bf16", chosen=1, **shape)
    assert tuple(engine.given[-2]["logits"].shape) == (5, 8) and tuple(engine.given[-1]["ids"].shape) == (5, 2)
    with pytest.raises(Missing, match="inner of 64"):
        CASES["moe"](bench(engine), dtype="mxfp4", hidden=64, inner=96, **shape)
