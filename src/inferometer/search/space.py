"""Every server that could be started: layouts, precisions, GPU types; and why the others cannot.

A server is one engine on its own GPUs. A plan is one or more of them: replicas alike, or pools that read and answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from ..base import ranges
from ..base.errors import BadValue, check_int
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan
from ..inference.latency import draft_reason
from ..inference.request import Request, build_request
from ..specs import catalog
from ..specs.structs import Hardware

BUDGETS = (2048, 4096, 8192, 16384)  # --max-num-batched-tokens
SEQUENCES = (32, 64, 128, 256, 512)  # --max-num-seqs; the engine's own default is tried, too


class Layout(NamedTuple):
    """How a model lies on the GPUs of one server; dp > 1 only where its ranks meet at the experts."""

    tp: int
    pp: int
    dp: int
    ep: bool

    @property
    def gpus(self) -> int:
        """GPUs of the server."""
        return self.tp * self.pp * self.dp

    def __str__(self) -> str:
        words = [f"{name}{size}" for name, size in (("tp", self.tp), ("pp", self.pp), ("dp", self.dp)) if size > 1]
        return "·".join([*(words or ["tp1"]), *(["ep"] if self.ep else [])])


class Server(NamedTuple):
    """One engine that could be started."""

    gpu: str  # as it was given
    request: Request  # with the plan of its layout; limits of a step are still the engine's defaults
    layout: Layout
    given: tuple[str | None, str] = (None, "auto")  # precision and cache in the words of a request

    @property
    def kind(self) -> tuple[str, str, str]:
        """What servers that hand caches to each other must have in common: GPU, precision, cache."""
        return self.gpu, self.request.plan.quantization, self.request.plan.kv_cache_dtype

    def words(self) -> dict[str, Any]:
        """The server in the words of a request, but for limits of a step."""
        tp, pp, dp, ep = self.layout
        quantization, cache = self.given
        return {
            "gpu": self.gpu,
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "data_parallel_size": dp,
            "enable_expert_parallel": ep,
            "quantization": quantization,
            "kv_cache_dtype": cache,
        }

    def bind(self) -> BoundPlan:
        """Ready to be priced, for sequences of all lengths."""
        found = self.request.bind()
        return found._replace(env={**found.env, "uniform_lengths": 0.0})


class Space(NamedTuple):
    """What is searched, axis by axis."""

    gpus: tuple[str, ...]
    num_gpus: int
    sizes: tuple[int, ...]  # of tp, pp and dp
    tp: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    ep: tuple[bool, ...]
    quantizations: tuple[str | None, ...]
    kv_cache_dtypes: tuple[str, ...]
    budgets: tuple[int, ...]
    sequences: tuple[int, ...]
    modes: tuple[str, ...]  # aggregated, disaggregated
    words: dict[str, Any]  # of `request`, the same for all

    def stated(self) -> dict[str, Any]:
        """The axes as the result shows them."""
        return {
            "gpu": list(self.gpus),
            "num_gpus": self.num_gpus,
            "tensor_parallel_size": list(self.tp),
            "pipeline_parallel_size": list(self.pp),
            "data_parallel_size": list(self.dp),
            "enable_expert_parallel": list(self.ep),
            "quantization": [q or "as it is" for q in self.quantizations],
            "kv_cache_dtype": list(self.kv_cache_dtypes),
            "max_num_batched_tokens": list(self.budgets),
            "max_num_seqs": list(self.sequences),
            "mode": list(self.modes),
        }


def space(
    model: str,
    gpus: Sequence[str],
    num_gpus: int,
    *,
    modes: tuple[str, ...],
    tensor_parallel_size: Any = None,
    pipeline_parallel_size: Any = None,
    data_parallel_size: Any = None,
    enable_expert_parallel: Any = None,
    quantization: Any = None,
    kv_cache_dtype: Any = None,
    max_num_batched_tokens: Any = None,
    max_num_seqs: Any = None,
    **words: Any,
) -> Space:
    """The axes: what was given, or what is worth trying. Words that are none of them go to every request."""
    count = check_int("--num-gpus", num_gpus, most=1024)
    sizes = sizes_of(count)
    first = build_request(model, gpus[0], **words)
    if first.model.kind != "decoder":
        raise BadValue(f"{first.model.name} is a {first.model.kind} model: only a decoder answers requests with tokens")
    mixture = any(op.kind == "moe" for block in first.model.blocks for op in block.ops)
    flags = {
        "tp": ("--tensor-parallel-size", tensor_parallel_size),
        "pp": ("--pipeline-parallel-size", pipeline_parallel_size),
        "dp": ("--data-parallel-size", data_parallel_size),
    }
    chosen = {word: sizes if given is None else _whole(flag, given, count) for word, (flag, given) in flags.items()}
    if data_parallel_size is None and not mixture:
        chosen["dp"] = (1,)  # replicas of a dense model never speak to each other: they are servers of their own
    given = enable_expert_parallel
    spread = ranges.switches("--enable-expert-parallel", given) if given is not None else None
    engine = first.engine
    budgets = _limits("--max-num-batched-tokens", max_num_batched_tokens, (*BUDGETS, engine.max_num_batched_tokens))
    sequences = _limits("--max-num-seqs", max_num_seqs, (*SEQUENCES, engine.max_num_seqs))
    own = precision.summary(first.roles, first.plan.dtype)
    devices = [catalog.hardware(gpu) for gpu in gpus]
    eight = any("fp8" in device.flops for device in devices)
    quantizations: tuple[str | None, ...] = (None, "fp8") if own in catalog.UNQUANTIZED and eight else (None,)
    if quantization is not None:
        quantizations = tuple(
            dict.fromkeys(
                catalog.precision(q, "quantization").name for q in ranges.choices("--quantization", quantization)
            )
        )
    caches = ("auto", "fp8") if eight and first.plan.kv_cache_dtype != "fp8" else ("auto",)
    if kv_cache_dtype is not None:
        caches = ranges.choices("--kv-cache-dtype", kv_cache_dtype)
    return Space(
        tuple(gpus),
        count,
        sizes,
        chosen["tp"],
        chosen["pp"],
        chosen["dp"],
        spread or ((False, True) if mixture else (False,)),
        quantizations,
        caches,
        budgets,
        sequences,
        modes,
        words,
    )


def sizes_of(num_gpus: int) -> tuple[int, ...]:
    """Sizes of an axis that are tried: powers of two, and what divides the GPUs: ``sizes_of(12)  # 1 2 3 4 6 8 12``"""
    return tuple(n for n in range(1, num_gpus + 1) if n & (n - 1) == 0 or num_gpus % n == 0)


def _whole(flag: str, given: Any, most: int) -> tuple[int, ...]:
    return tuple(check_int(flag, n, most=most) for n in ranges.numbers(flag, given, whole=True))


def _limits(flag: str, given: Any, usual: tuple[int, ...]) -> tuple[int, ...]:
    if given is None:
        return tuple(sorted(set(usual)))
    return tuple(sorted(check_int(flag, n) for n in ranges.numbers(flag, given, whole=True)))


def layouts(space: Space) -> list[Layout]:
    """All that fit into the GPUs, legal or not; experts are spread only where there are ranks to spread them over."""
    return [
        Layout(tp, pp, dp, ep)
        for tp in space.tp
        for pp in space.pp
        for dp in space.dp
        for ep in space.ep
        if tp * pp * dp <= space.num_gpus and (not ep or tp * dp > 1 or space.ep == (True,))
    ]


def servers(space: Space, model: str) -> tuple[list[Server], list[tuple[Server, str]]]:
    """Those that are legal, and those that are not, each with its reason."""
    able: list[Server] = []
    illegal: list[tuple[Server, str]] = []
    network = None
    for gpu in space.gpus:
        seen: set[tuple[str, str]] = set()
        for quantization in space.quantizations:
            for cache in space.kv_cache_dtypes:
                request = build_request(model, gpu, quantization=quantization, kv_cache_dtype=cache, **space.words)
                kind = (request.plan.quantization, request.plan.kv_cache_dtype)
                if kind in seen:  # "as it is" may be what was asked for by name, too
                    continue
                seen.add(kind)
                network = network or request.model
                request = request._replace(model=network)  # one object: what is remembered about its blocks serves all
                why_not = _unable(request.device, quantization, cache)
                for layout in layouts(space):
                    server = Server(
                        gpu,
                        request._replace(plan=_laid_out(request, layout, space.words)),
                        layout,
                        (quantization, cache),
                    )
                    why = why_not or parallelism.illegal_reason(network, server.request.plan, request.device)
                    if not why and request.plan.speculation is not None:
                        why = draft_reason(server.request.bind())
                    if why:
                        illegal.append((server, why))
                    else:
                        able.append(server)
    return able, illegal


def _unable(device: Hardware, quantization: str | None, cache: str) -> str:
    """Why a device is not tried with a precision that it would have to convert; empty if it is."""
    for word, what in ((quantization, "weights"), (cache, "KV cache")):
        if word == "fp8" and "fp8" not in device.flops:
            return f"{device.name} does not multiply in fp8, which the {what} would be in"
    return ""


def _laid_out(request: Request, layout: Layout, words: dict[str, Any]) -> Any:
    """The plan of a layout, on as many nodes as it needs."""
    per_node = words.get("gpus_per_node") or parallelism.gpus_per_nvlink_domain(request.device, layout.gpus)
    return msgspec.structs.replace(
        request.plan,
        tensor_parallel_size=layout.tp,
        pipeline_parallel_size=layout.pp,
        data_parallel_size=layout.dp,
        enable_expert_parallel=layout.ep,
        gpus_per_node=per_node,
        nodes=-(-layout.gpus // per_node),
    )
