"""Seconds of whole steps and of single kernels over the catalogue, as arrays that physical guards compare."""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from typing import Any, NamedTuple

import numpy as np

from inferometer.base.symbols import names as s
from inferometer.costs import precision as numerics
from inferometer.costs.binding import BoundPlan, bind, step_seconds
from inferometer.costs.kernels import Formats, assumed, rounding
from inferometer.costs.kernels.kernel_rows import row_terms
from inferometer.costs.kernels.lookup import kernel_sources
from inferometer.costs.kernels.registry import installed, reach
from inferometer.costs.step import Group, Step
from inferometer.inference import latency
from inferometer.network import families
from inferometer.network.operators import attention, experts, linear
from inferometer.specs import catalog
from inferometer.specs.catalog import DATA
from inferometer.specs.structs import Hardware, Plan

MODELS = {"llama-3.1-8b": 1, "llama-3.1-70b": 4, "qwen3-30b-a3b": 1, "gpt-oss-120b": 1}  # tensor_parallel_size
ENGINES = ("vllm", "sglang", "trtllm", "hf")
PRECISIONS = ("bf16", "w8a16", "w4a16", "fp8", "fp8-block", "int8", "nvfp4", "mxfp4")
BATCHES = np.array([1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512], float)
CONTEXTS = np.array([128, 512, 1024, 4096, 16384, 65536], float)
PROMPTS = np.array([1, 8, 64, 256, 512, 1024, 2048, 3072, 4096, 6144, 8192, 12288, 16000], float)
GENERATIONS = ("volta", "turing", "ampere", "ada", "hopper", "blackwell")
TOLERANCE = 0.01  # nodes are kept to a hundredth of an octave (0.7%), and a cell between them bends a little


class Violation(NamedTuple):
    """A guard that a prediction breaks: ``Violation("bits", "llama-3.1-8b", "h200", "vllm", "w4a16 fp8", …, 0.13)``"""

    guard: str
    subject: str  # a model, or a kind of kernel
    device: str  # "h100-sxm", or "slower faster"
    engine: str
    precision: str  # "fp8", or "fewer more" bits
    where: str
    by: float  # how much slower than allowed

    def matches(self, exception: dict[str, Any]) -> bool:
        """Whether an entry of the list of exceptions is about it: ``violation.matches({"guard": "bits"})``"""
        fields = ("guard", "subject", "device", "engine", "precision")
        return all(fnmatch(getattr(self, name), exception.get(name, "*")) for name in fields)


def exceptions() -> list[dict[str, Any]]:
    """The guards that measurements are known to break, each with its source."""
    return tomllib.loads((DATA / "profiles" / "exceptions.toml").read_text(encoding="utf-8"))["exception"]


# ------------------------------------------------------------------ steps


def usual_precisions(model: str, device: Hardware) -> list[str]:
    """The precisions that a model is served in: mxfp4 is gpt-oss' own, nvfp4 needs units, blocks are of mixtures."""
    if model.startswith("gpt-oss"):
        return ["bf16", "mxfp4"]
    mixture = ["fp8-block"] if model.startswith("qwen3-30b") else ["w8a16", "w4a16", "int8"]
    return ["bf16", "fp8", *mixture, *(["nvfp4"] if "fp4" in device.flops else [])]


def runs_as(device: Hardware, precision: str) -> str:
    """The format whose kernels run on a device: ``runs_as(catalog.hardware("a100-sxm-80gb"), "fp8")  # "w8a16"``"""
    return numerics.formats(device, {"mlp": precision}, "bf16")["mlp"]


@functools.cache
def network(model: str) -> Any:
    """A model of the catalogue, built once."""
    return families.build(catalog.model(model).config)


def bound(model: str, device: Hardware, engine: str, precision: str) -> BoundPlan:
    """A model in one precision on a device, its tensor-parallel size that of `MODELS`."""
    built = network(model)
    plan = Plan(tensor_parallel_size=MODELS[model], quantization=precision, max_num_seqs=512)
    roles = numerics.precision_by_role(built, "bf16", precision)
    return bind(built, device, catalog.engine(engine), plan, roles=roles)


class Steps(NamedTuple):
    """Seconds of decode steps (batches, contexts), and of prompts (lengths) from their first step to their last."""

    decode: np.ndarray
    prompts: np.ndarray


def steps(model: str, device: Hardware, engine: str, precision: str) -> Steps:
    """``steps("llama-3.1-8b", catalog.hardware("h200"), "vllm", "fp8").decode[0, 2]  # batch 1 at 1,024 tokens``"""
    plan = bound(model, device, engine, precision)
    decode = step_seconds(plan, Step((Group(BATCHES[:, None], 1.0, CONTEXTS[None, :] - 1, 1, True),)))
    prompts = latency.pipelined_seconds(plan, latency.budgeted_prefill(plan, np.ones_like(PROMPTS), PROMPTS))
    return Steps(np.broadcast_to(decode, (len(BATCHES), len(CONTEXTS))), np.asarray(prompts))


def falls(values: np.ndarray, axis: int, labels: np.ndarray) -> tuple[float, str]:
    """How far values lie below an earlier one along an axis at most, and where: ``(0.05, "2 < 1")``"""
    highest = np.maximum.accumulate(values, axis=axis)
    share = highest / values - 1
    at = np.unravel_index(int(np.argmax(share)), values.shape)
    line = np.moveaxis(values, axis, 0)[(slice(None), *(i for n, i in enumerate(at) if n != axis))]
    peak = int(np.argmax(line[: at[axis] + 1]))
    return float(share[at]), f"{labels[at[axis]]:g} < {labels[peak]:g} at {at}"


def step_falls(model: str, device: Hardware, engine: str, precision: str, took: Steps) -> Iterator[Violation]:
    """More sequences, a longer context or a longer prompt never take less time.

    TensorRT-LLM captures powers of two as graphs and launches batches between them kernel by kernel.
    """
    captured = np.log2(BATCHES) % 1 == 0 if engine == "trtllm" else BATCHES > 0
    for name, values, axis, labels in (
        ("batch", took.decode[captured], 0, BATCHES[captured]),
        ("context", took.decode, 1, CONTEXTS),
        ("prompt", took.prompts, 0, PROMPTS),
    ):
        by, where = falls(values, axis, labels)
        if by > TOLERANCE:
            yield Violation(f"work {name}", model, device.name, engine, precision, where, by)


# ------------------------------------------------------------------ one device against another


def dominates(better: Hardware, worse: Hardware, *, linked: bool) -> bool:
    """Whether a device has no figure that is worse; its links too, if they count.

    Devices of two generations are compared where both have tables of their own.
    """
    if better.vendor != worse.vendor or better.name == worse.name:
        return False
    if better.architecture != worse.architecture:
        if not {better.name, worse.name} <= set(installed()):
            return False  # a guess against a guess, each by donors of its own
        order = [GENERATIONS.index(d.architecture) if d.architecture in GENERATIONS else -1 for d in (better, worse)]
        if min(order) < 0 or order[0] <= order[1]:
            return False
    pairs = [(better.memory_bandwidth, worse.memory_bandwidth), (worse.throttle, better.throttle)]
    pairs += [(better.flops.get(name, 0.0), peak) for name, peak in worse.flops.items() if name not in ("fp64", "fp32")]
    reaches = [reach(device) for device in (better, worse)]  # what kernels get of it
    pairs += [
        (reaches[0].memory * better.memory_bandwidth, reaches[1].memory * worse.memory_bandwidth),
        *(
            (reaches[0].flops * better.flops.get(name, 0.0), reaches[1].flops * peak)
            for name, peak in worse.flops.items()
            if name not in ("fp64", "fp32")
        ),
    ]
    if better.architecture == worse.architecture:
        pairs.append((better.compute_units, worse.compute_units))
    if linked:
        links = [device.links.get(device.interconnect) for device in (better, worse)]
        if links[0] is None or links[1] is None:
            return False
        pairs += [(links[0].bandwidth, links[1].bandwidth), (links[1].latency, links[0].latency)]
    return all(a >= b for a, b in pairs)


# ------------------------------------------------------------------ kernels

_OPS = {
    "linear": linear("product", s.k, s.n, m=s.m),
    "moe": experts("experts", s.hidden, s.inner, count=s.count, top_k=s.top_k),
    **{
        f"{phase}_attention": attention(
            "attention", phase, heads=s.heads, kv_heads=s.kv_heads, qk_dim=s.qk_dim, v_dim=s.v_dim, kv_width=s.kv_width
        )
        for phase in ("prefill", "decode")
    },
}
_HEADS = {"heads": 32.0, "kv_heads": 8.0, "head_dim": 128.0}
_MIXTURES = ((2048, 768, 128, 8), (4096, 14336, 8, 2), (2880, 2880, 128, 4))  # Qwen3-30B-A3B, Mixtral, gpt-oss-120b


def _octaves(low: float, high: float, step: float = 1.0) -> np.ndarray:
    return 2.0 ** np.arange(low, high + step / 2, step)


def _grids(kind: str, cache: str) -> Iterator[tuple[dict[str, Any], tuple[str, ...]]]:
    """Sizes of a kind of kernel as arrays that broadcast, and the axes along which work grows."""
    if kind == "linear":  # weights that no curve was measured for: a curve and a surface meet only within their errors
        m, n, k = np.meshgrid(_octaves(0, 13, 0.5), 1.3 * _octaves(9, 15), 1.3 * _octaves(9, 14), indexing="ij")
        yield {"m": m, "n": n, "k": k}, ("rows", "outputs", "inputs")
    elif kind == "decode_attention":
        seqs, context = np.meshgrid(_octaves(0, 10), _octaves(7, 17), indexing="ij")  # whole tiles of the cache
        yield {**_HEADS, "seqs": seqs, "context": context, "kv_dtype": cache}, ("sequences", "context")
    elif kind == "prefill_attention":
        seqs, new = np.meshgrid(_octaves(0, 6), _octaves(5, 15, 0.5), indexing="ij")
        yield {**_HEADS, "seqs": seqs, "new": new, "context": new, "kv_dtype": cache}, ("sequences", "prompt")
    else:
        for hidden, inner, count, top_k in _MIXTURES:
            sizes = {"hidden": hidden, "inner": inner, "experts": float(count), "top_k": float(top_k)}
            yield {**sizes, "tokens": _octaves(0, 14, 0.5)}, ("tokens",)


def _seconds(device: Hardware, engine: str, kind: str, dtype: str, sizes: dict[str, Any]) -> np.ndarray:
    """Seconds of kernels by the sources that a plan would have."""
    spec, op = catalog.engine(engine), _OPS[kind]
    runs = numerics.formats(device, {"mlp": dtype, "experts": dtype}, "bf16")
    formats = Formats(runs, sizes.get("kv_dtype", "bf16"), rounding(spec, device))
    row = row_terms(kind, dtype, sizes, device)
    assert row is not None
    dims = {"groups": 1, **row.dims}
    chain = kernel_sources(device, spec.profile, formats, kinds=spec.profile_kinds) if spec.profile else ()
    seconds = np.full(np.shape(row.terms.memory), np.nan)
    for source in (*chain, assumed(spec)):
        if source.kinds is None or kind in source.kinds:
            seconds = np.where(np.isnan(seconds), source.answer(op, lambda: dims, row.terms), seconds)
    return seconds


def kernel_falls(device: Hardware, engine: str, precisions: Sequence[str] = PRECISIONS) -> Iterator[Violation]:
    """Of every kind and format: more work never takes less time."""
    for kind in _OPS:
        for dtype in [p for p in precisions if p in ("bf16", "fp8")] if kind.endswith("_attention") else precisions:
            for sizes, names in _grids(kind, dtype):
                took = _seconds(device, engine, kind, dtype, sizes)
                for axis, name in enumerate(names):
                    by, where = falls(took, axis, np.arange(took.shape[axis]))
                    if by > TOLERANCE:
                        yield Violation(f"work {name}", kind, device.name, engine, dtype, where, by)
