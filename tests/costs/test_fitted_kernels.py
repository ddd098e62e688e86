"""Kernels that are timed: each computes what it says, against float64; engines' come first, ranks really talk."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import json
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from inferometer.profiling import machine, shape_grid, timer
from inferometer.profiling.microbenchmarks import CASES, KernelBench, Library, Missing, Ready, nccl, runner
from inferometer.specs import catalog

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def cpu() -> Iterator[KernelBench]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    torch.manual_seed(0)
    made = KernelBench(torch, "cpu", Library(), 1e4)  # a small rotation: two or three buffers of a tiny shape
    yield made
    made.close()


def close(found: Any, right: Any, within: float = 0.02) -> None:
    """Equal up to the rounding of bf16, measured against the size of the numbers."""
    assert found.shape == right.shape
    error = (found.double() - right).abs().max() / right.abs().max()
    assert error < within, f"off by {error:.3g} of the largest"


LINEARS: dict[str, Callable[[Any], Any]] = {
    "bf16": lambda i: i["x"].double() @ i["weight"].double().t(),
    "fp16": lambda i: i["x"].double() @ i["weight"].double().t(),
    "fp8": lambda i: i["x"].double() @ i["weight"].double().t() * i["scale"].double(),
    "int8": lambda i: i["x"].double() @ i["weight"].double().t() * i["scale"].double(),
    "w8a16": lambda i: i["x"].double() @ i["weight"].double().t() * i["scale"].double(),
    "fp8-block": lambda i: _blocks(i["x"], i["x_scale"], 1) @ _blocks(i["weight"], i["weight_scale"], 128).t(),
    "w4a16": lambda i: i["x"].double() @ _nibbles(i["weight"], i["scale"]).t(),
}


def _blocks(x: Any, scale: Any, rows: int) -> Any:
    return x.double() * scale.double().repeat_interleave(rows, 0).repeat_interleave(128, 1)


def _nibbles(q: Any, scale: Any) -> Any:
    factor, offset = (scale.double()[..., part].t().repeat_interleave(128, 1) for part in (0, 1))
    return (q.double() - 8) * factor + offset


@pytest.mark.slow
@pytest.mark.parametrize("dtype", LINEARS)
def test_products_multiply(cpu: KernelBench, dtype: str) -> None:
    ready = CASES["linear"](cpu, dtype=dtype, m=5, n=128, k=256)
    close(ready.calls[0](), LINEARS[dtype](ready.inputs))
    assert ready.source.startswith("torch")
    assert ready.cold == pytest.approx(128 * 256 * catalog.precision(dtype).bytes)


def attended(q: Any, k: Any, v: Any, window: int = 0) -> Any:
    """Softmax attention of (sequences, heads, new, dim) over (sequences, KV heads, context, dim), in float64."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5
    new, context = scores.shape[-2:]
    for i, j in itertools.product(range(new), range(context)):
        here = context - new + i
        if j > here or (window and j <= here - window):
            scores[..., i, j] = float("-inf")
    return scores.softmax(-1) @ v


ATTENTION = [
    ("decode_attention", {"seqs": 3, "heads": 4, "kv_heads": 2, "head_dim": 16, "context": 9}),
    ("decode_attention", {"seqs": 3, "heads": 4, "kv_heads": 2, "head_dim": 80, "context": 9, "window": 4}),
    ("decode_attention", {"seqs": 2, "heads": 4, "kv_heads": 1, "head_dim": 16, "context": 9, "kv_dtype": "fp8"}),
    ("prefill_attention", {"seqs": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "new": 7, "context": 7}),
    ("prefill_attention", {"seqs": 2, "heads": 4, "kv_heads": 4, "head_dim": 96, "new": 3, "context": 8}),
    ("prefill_attention", {"seqs": 1, "heads": 2, "kv_heads": 1, "head_dim": 16, "new": 5, "context": 9, "window": 3}),
    ("mixed_attention", {"new": 4, "cached": 3, "seqs": 2, "context": 6, "heads": 4, "kv_heads": 2, "head_dim": 16}),
    ("mla_prefill", {"seqs": 2, "heads": 2, "new": 3, "context": 5, "qk_dim": 24, "v_dim": 16}),
]


@pytest.mark.parametrize("number", range(len(ATTENTION)))
def test_attention_attends(cpu: KernelBench, number: int) -> None:
    kind, shape = ATTENTION[number]
    ready = CASES[kind](cpu, dtype="bf16", **shape)
    found = ready.calls[0]()
    found = [found] if kind == "mla_prefill" else found
    groups = ready.inputs["groups"]
    assert len(found) == len(groups) == (2 if kind == "mixed_attention" else 1)
    for out, (q, k, v) in zip(found, groups, strict=True):
        close(out, attended(q, k, v, int(shape.get("window", 0))))  # type: ignore[arg-type]
    if kind == "mixed_attention":
        assert [tuple(q.shape[::2]) for q, _, _ in groups] == [(1, 4), (2, 1)] and groups[0][1].shape[2] == 7


def test_a_window_reads_only_what_it_sees(cpu: KernelBench) -> None:
    shape: dict[str, Any] = {"seqs": 2, "heads": 4, "kv_heads": 2, "head_dim": 16, "context": 9}
    decode, prefill = CASES["decode_attention"], CASES["prefill_attention"]
    assert decode(cpu, dtype="bf16", **shape).cold == 2 * 2 * 2 * 16 * 9 * 2
    assert decode(cpu, dtype="bf16", **shape, window=4).cold == 2 * 2 * 2 * 16 * 4 * 2
    assert decode(cpu, dtype="bf16", **shape, kv_dtype="fp8").cold == 2 * 2 * 2 * 16 * 9
    assert prefill(cpu, dtype="bf16", **shape, new=3, window=4).cold == 2 * 2 * 2 * 16 * 6 * 2


@pytest.mark.parametrize("more", [{}, {"kv_dtype": "fp8"}], ids=["bf16", "fp8"])
def test_latents_are_attended_to(cpu: KernelBench, more: dict[str, str]) -> None:
    ready = CASES["mla_decode"](cpu, dtype="bf16", seqs=2, heads=4, context=7, kv_rank=32, rope_dim=8, **more)
    q, latents = ready.inputs["query"].double(), ready.inputs["latents"].double()
    scores = q @ latents.transpose(1, 2) * 40**-0.5
    close(ready.calls[0](), scores.softmax(-1) @ latents[..., :32])


@pytest.mark.parametrize(
    ("dtype", "more"),
    [("bf16", {}), ("bf16", {"skew": 1.0}), ("bf16", {"ep": 2}), ("fp8", {}), ("fp8-block", {})],
    ids=["bf16", "skewed", "one rank of two", "fp8", "fp8-block"],
)
def test_experts_are_chosen_weighted_and_summed(cpu: KernelBench, dtype: str, more: dict[str, Any]) -> None:
    ready = CASES["moe"](cpu, dtype=dtype, tokens=6, hidden=128, inner=128, experts=4, top_k=2, **more)
    i = ready.inputs
    up, down = ((w if dtype == "bf16" else w[0].double() * w[1].double()).double() for w in (i["up"], i["down"]))
    right = i["x"].double() * 0
    for token, (ids, shares) in enumerate(zip(i["ids"].tolist(), i["shares"].double(), strict=True)):
        assert len(set(ids)) == 2 or max(ids) == 4, "a token chooses distinct experts"
        for expert, share in zip(ids, shares, strict=True):
            if expert < 4:  # the others are on another rank
                gate, value = (up[expert] @ i["x"][token].double()).chunk(2)
                right[token] += share * (down[expert] @ (gate * gate.sigmoid() * value))
    close(ready.calls[0](), right, 0.03)
    assert len(ready.calls) >= 8, "each call has another choice"


def test_skewed_routing_loads_few_experts(cpu: KernelBench) -> None:
    def hottest(skew: float) -> float:
        shape = {"tokens": 512, "hidden": 16, "inner": 16, "experts": 32, "top_k": 2, "skew": skew}
        ready = CASES["moe"](cpu, dtype="bf16", **shape)
        return float(ready.inputs["ids"].flatten().bincount(minlength=32).max()) / 1024

    even, skewed = hottest(0.0), hottest(1.2)
    assert even < 0.06 and skewed > 3 * even
    assert skewed == pytest.approx(1 / sum(i**-1.2 for i in range(1, 33)), rel=0.35)  # Zipf's share of the first


def test_small_kernels_compute(cpu: KernelBench) -> None:
    t = cpu.torch
    i, (found, whole) = _ran(cpu, "norm", m=3, n=64)
    right = i["x"].double() + i["residual"].double()
    close(whole, right)
    close(found, right * (right.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * i["weight"].double())
    i, found = _ran(cpu, "activation", m=3, n=64)
    gate, value = i["x"].double().chunk(2, -1)
    close(found, gate * gate.sigmoid() * value)
    i, found = _ran(cpu, "sampler", m=3, n=100)
    assert found.tolist() == i["x"].argmax(-1).tolist()
    i, found = _ran(cpu, "embedding", m=4, n=32, rows=50)
    assert t.equal(found, i["table"][i["ids"]])
    i, found = _ran(cpu, "copy", bytes=4096)
    assert t.equal(found, i["x"]) and i["x"].numel() * 2 * 2 == 4096
    i, found = _ran(cpu, "kv_write", m=5, kv_heads=2, head_dim=8)
    for new, cache in zip(i["new"], found, strict=True):
        assert t.equal(cache.view(-1, 2, 8)[i["slots"]], new)
    assert len(set(i["slots"].tolist())) == 5


def _ran(cpu: KernelBench, kind: str, dtype: str = "bf16", **shape: Any) -> tuple[Any, Any]:
    ready = CASES[kind](cpu, dtype=dtype, **shape)
    return ready.inputs, ready.calls[0]()


def test_rope_turns_by_position(cpu: KernelBench) -> None:
    t = cpu.torch
    i, found = _ran(cpu, "rope", m=3, heads=4, kv_heads=2, head_dim=16)
    speed = 10000.0 ** -(t.arange(8).double() / 8)
    turn = t.polar(t.ones(3, 1, 8).double(), (i["positions"].double()[:, None] * speed)[:, None])
    for before, after, heads in ((i["query"], found[0], 4), (i["key"], found[1], 2)):
        x = before.double().view(3, heads, 16)
        right = t.complex(x[..., :8].contiguous(), x[..., 8:].contiguous()) * turn
        close(after, t.cat((right.real, right.imag), -1))


@pytest.mark.parametrize(
    ("dtype", "more", "scales"), [("fp8", {}, ()), ("fp8", {"block": 32}, (3, 2, 1)), ("int8", {}, (3, 1))]
)
def test_quantised_numbers_come_back(
    cpu: KernelBench, dtype: str, more: dict[str, int], scales: tuple[int, ...]
) -> None:
    i, (found, scale) = _ran(cpu, "quantize", dtype, m=3, n=64, **more)
    assert tuple(scale.shape) == scales and found.dtype in (cpu.torch.int8, cpu.torch.float8_e4m3fn)
    groups = found.double().view(3, 2, 32) if more else found.double()
    close((groups * scale.double()).view(3, 64), i["x"].double(), 0.04)


def test_every_kind_has_a_case_and_its_words_are_the_rows(cpu: KernelBench) -> None:
    rows = {(row["kind"], *row): row for row in shape_grid.all_shapes((2,), "gloo")}
    assert {row["kind"] for row in rows.values()} == set(CASES)
    for row in rows.values():  # a row that a case does not understand would only show on the GPU
        inspect.signature(CASES[row["kind"]]).bind(cpu, **{k: v for k, v in row.items() if k != "kind"})


def test_launches_are_timed_on_the_host(cpu: KernelBench) -> None:
    ready = CASES["launch"](cpu, dtype="bf16", kernels=16)
    assert ready.own is not None and ready.own() > 0
    with pytest.raises(Missing, match="no CUDA graphs"):
        CASES["graph_replay"](cpu, dtype="bf16", kernels=16)


# ------------------------------------------------------------------ libraries that are there, broken or not there


class Scaled:
    """An engine's product on a CPU, to see that it is preferred."""

    @staticmethod
    def product(x: Any, w: Any, sx: Any, sw: Any, dtype: Any) -> Any:
        return ((x.float() @ w.float()) * sx * sw).to(dtype)


def test_the_engines_kernel_comes_first_and_a_broken_one_is_passed_over(cpu: KernelBench) -> None:
    library = Library("engine")
    where = KernelBench(cpu.torch, "cpu", library, 1e4)
    library.known["_custom_ops:cutlass_scaled_mm"] = Scaled.product
    ready = CASES["linear"](where, dtype="fp8", m=2, n=32, k=16)
    assert ready.source == "vllm CUTLASS" and ready.calls[0]().shape == (2, 32)

    def broken(*args: Any) -> None:
        raise AttributeError("no such operator")

    library.known["_custom_ops:cutlass_scaled_mm"] = broken
    assert CASES["linear"](where, dtype="fp8", m=2, n=32, k=16).source == "torch"
    assert CASES["norm"](where, dtype="bf16", m=2, n=32).source == "torch"  # the library is not there at all


def test_what_a_library_lacks_is_missing_alone() -> None:
    library = Library("json")
    assert library("decoder:JSONDecoder.decode") is json.JSONDecoder.decode
    for path in ("decoder:Nothing", "nowhere:at_all"):
        with pytest.raises(Missing, match=path):
            library(path)
    with pytest.raises(Missing, match="no engine"):
        Library()("decoder:JSONDecoder")


def test_without_any_kernel_all_reasons_are_said(cpu: KernelBench) -> None:
    def first() -> Ready:
        raise Missing("needs another device")

    def second() -> Ready:
        raise RuntimeError("bad shape\nand a trace")

    with pytest.raises(Missing, match=r"needs another device; kernel: RuntimeError: bad shape$"):
        cpu.first(first, second)
    with pytest.raises(Missing, match="no product in int2"):
        CASES["linear"](cpu, dtype="int2", m=1, n=16, k=16)
    with pytest.raises(ValueError, match="twice"):
        runner.case("linear")(lambda: None)  # type: ignore[arg-type,return-value]


def test_buffers_rotate_through_more_than_the_cache(cpu: KernelBench) -> None:
    where = KernelBench(cpu.torch, "cpu", Library(), 10_000.0)
    assert len(where.copies("a", 3000, object)) == 4
    assert where.copies("a", 3000, object) is where.copies("a", 3000, object), "kept for the next shape"
    assert len(where.copies("b", 1e9, object)) == 1 and len(where.copies("c", 1, object)) == runner.MOST_COPIES
    assert machine.rotation({"cache": 50e6}) == 100e6 and machine.rotation({"cache": 0}) > 100e6


# ------------------------------------------------------------------ collectives


@pytest.mark.slow
def test_two_processes_talk(cpu: KernelBench) -> None:
    where = KernelBench(cpu.torch, "cpu", Library(), 1e4)
    try:
        for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
            ready = CASES[kind](where, dtype="bf16", bytes=4096, ranks=2, library="gloo")
            assert ready.source == "torch gloo" and ready.own is not None
            assert ready.own() > 0, kind  # each rank has checked the numbers that it got
        team = where.teams[2]
        with pytest.raises(Missing, match="KeyError"):
            team.ask("shout", 4096)
        assert team.ask("all_reduce", 64) > 0, "the processes go on after a mistake"
        members = [member for member, _ in team.members]
        members[0].kill()
        with pytest.raises(Missing, match="gave up"):
            team.ask("all_reduce", 64)
    finally:
        where.close()
    assert not any(member.is_alive() for member in members) and not where.teams
    assert not team.folder.exists()


def test_collectives_say_what_they_need(cpu: KernelBench) -> None:
    with pytest.raises(Missing, match="gloo, not nccl"):
        CASES["all_reduce"](cpu, dtype="bf16", bytes=4096, ranks=2)
    with pytest.raises(Missing, match="not 1 devices"):
        CASES["all_reduce"](cpu, dtype="bf16", bytes=4096, ranks=1, library="gloo")
    where = KernelBench(cpu.torch, "cpu", Library(), 1e4, deadline=time.monotonic())
    with pytest.raises(timer.OutOfTime):  # no time is left for processes to start
        CASES["all_reduce"](where, dtype="bf16", bytes=4096, ranks=2, library="gloo")
    assert not cpu.teams and not where.teams and nccl.LIBRARY["cuda"] == "nccl"


def test_a_missing_function_keeps_nobodys_buffers() -> None:
    """A run of thousands of shapes asks for it again and again, each time with gigabytes in hand."""

    class Buffer:
        pass

    held: list[weakref.ref[Buffer]] = []
    library = Library()

    def attempt() -> None:
        buffer = Buffer()
        held.append(weakref.ref(buffer))
        library("_custom_ops:not_there")

    for _ in range(2):
        with contextlib.suppress(Missing):
            attempt()
    assert [ref() for ref in held] == [None, None]
