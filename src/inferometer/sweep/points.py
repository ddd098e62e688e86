"""The points of a case, priced together: every figure of a box of its mesh as arrays that broadcast.

for piece in pieces(grid):
    piece.column("tpot_ms")       # the rows from piece.start on: a number if all are alike, else an array
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.symbols import Value, where, minimum_of
from ..base.units import size
from ..costs.images import images
from ..costs.step import Images
from ..inference.analyze import report_of
from ..inference.latency import BatchShape, predict, frontend_seconds, prompt_seconds, uniform_batch_shape
from ..inference.memory import Footprint, cache_offloaded, footprint
from ..inference.report import Metrics
from .grid import INNER, Case, Grid

POINTS = 262_144  # of a piece: enough that NumPy does the work, few enough that memory stays small
ALWAYS = (
    "model",
    "gpu",
    "engine",
    "gpus",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "enable_expert_parallel",
    "quantization",
    "kv_cache_dtype",
)
RATES = (
    "output_throughput",
    "total_token_throughput",
    "output_throughput_per_gpu",
    "cost_per_million_output_tokens",
    "joules_per_output_token",
)
FIGURES = (
    "ttft_ms",
    "tpot_ms",
    "e2el_ms",
    "prefill_throughput",
    *RATES[:3],
    "output_throughput_per_user",
    *RATES[3:],
    "weights_bytes",
    "kv_cache_bytes",
    "total_bytes",
    "usable_bytes",
)
_MANY = "more sequences on a replica than --max-num-seqs {:,}: they would not run at once"
_PREFIX = "--prefix-len must be shorter than the input"
_FULL = "needs more memory than the {} of each GPU that {} may use"


class Texts(NamedTuple):
    """A column of few different texts: which of them each row has."""

    codes: np.ndarray
    texts: tuple[str, ...]


class Piece(NamedTuple):
    """Rows that follow each other: constants, arrays that broadcast to ``shape``, and texts."""

    start: int
    shape: tuple[int, ...]
    columns: dict[str, Any]

    def __len__(self) -> int:
        return math.prod(self.shape)

    def column(self, name: str) -> Any:
        """A constant, or one value (of texts, one code) per row."""
        found = self.columns[name]
        if isinstance(found, Texts):
            return Texts(np.broadcast_to(found.codes, self.shape).ravel(), found.texts)
        if isinstance(found, np.ndarray):
            return np.broadcast_to(found, self.shape).ravel()
        return found


def pieces(grid: Grid, threads: int | None = None, most: int = POINTS) -> Iterator[Piece]:
    """All points of a grid, in the order of rows, a few pieces ahead of whoever takes them."""
    workers = threads or os.cpu_count() or 1
    waiting: deque[Future[Piece]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for case in grid:
            start = case.number * grid.each
            for box in boxes(case.shape, most):
                waiting.append(pool.submit(price, case, start, box))
                start += math.prod(part.stop - part.start for part in box)
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """A mesh cut into boxes of at most ``most`` points whose rows follow each other: ``boxes((4, 100), 200)``"""
    inner = math.prod(shape[1:])
    if len(shape) > 1 and inner > most:
        for index in range(shape[0]):
            yield from ((slice(index, index + 1), *rest) for rest in boxes(shape[1:], most))
        return
    step = max(1, most // inner)
    for index in range(0, shape[0], step):
        yield (slice(index, min(index + step, shape[0])), *(slice(0, n) for n in shape[1:]))


def price(case: Case, start: int, box: tuple[slice, ...]) -> Piece:
    """The rows of a box of a case."""
    axes = [values[part] for values, part in zip(case.mesh, box, strict=True)]
    shape = tuple(map(len, axes))
    mesh = np.ix_(*axes)
    columns = {**_constants(case), **dict(zip(INNER, mesh, strict=True))}
    found, reason = dict.fromkeys(FIGURES), Texts(np.zeros((1,) * len(shape), np.uint8), (case.reason,))
    if case.request is not None:
        found, reason = (_one_by_one if case.request.workload.turns else _priced)(case, mesh)
    columns |= {"feasible": np.array(reason.texts) == "", "reason": reason, **found}
    columns["feasible"] = columns["feasible"][reason.codes]
    return Piece(start, shape, columns)


def _constants(case: Case) -> dict[str, Any]:
    """What all points of a case have in common: the layout and the precision, and every word that was given."""
    given = {name: label(value) for name, value in case.words.items()}
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    found = {**dict.fromkeys(ALWAYS), **dict.fromkeys(sizes, 1), "enable_expert_parallel": False, **given}
    found["gpus"] = math.prod(found[name] for name in sizes)
    if case.request is not None:
        plan = case.request.plan
        found |= {
            "engine": case.request.engine.name,
            "quantization": plan.quantization,
            "kv_cache_dtype": plan.kv_cache_dtype,
        }
    return found


def label(value: Any) -> Any:
    """A value of an axis as a cell of a table: words and numbers as they are, anything else as JSON."""
    plain = value is None or isinstance(value, str | bool | int | float)
    return value if plain else msgspec.json.encode(value).decode()


# ------------------------------------------------------------------ figures


def _priced(case: Case, mesh: tuple[np.ndarray, ...]) -> tuple[dict[str, Any], Texts]:
    """Figures of a mesh and why points of it cannot be used. Images are priced one batch size at a time."""
    assert case.request is not None
    if not case.request.workload.images or len(mesh[0]) == 1:
        return _together(case, mesh)
    shape = np.broadcast_shapes(*(axis.shape for axis in mesh))[1:]
    parts = [_together(case, (mesh[0][i : i + 1], *mesh[1:])) for i in range(len(mesh[0]))]

    def joined(values: list[Any]) -> Any:
        return np.concatenate([np.broadcast_to(value, (1, *shape)) for value in values])

    columns = {
        name: None if parts[0][0][name] is None else joined([found[name] for found, _ in parts]) for name in FIGURES
    }
    return columns, Texts(joined([reason.codes for _, reason in parts]), parts[0][1].texts)


def _together(case: Case, mesh: tuple[np.ndarray, ...]) -> tuple[dict[str, Any], Texts]:
    assert case.request is not None and case.bound_plan is not None
    alone = all(axis.size == 1 for axis in mesh)  # one point is six times as fast in plain numbers
    batch, prompt, answer, prefix = (axis.item() for axis in mesh) if alone else mesh
    lost = prefix >= prompt
    prefix = minimum_of(prefix, prompt - 1)
    batch_shape = _talk(case, batch, prompt, answer, prefix)
    bound_plan = cache_offloaded(case.bound_plan, batch_shape)
    held = footprint(bound_plan, batch_shape)
    if case.request.model.kind == "decoder":
        found = predict(bound_plan, batch_shape)
        tpot = where(answer > 1, found.tpot, math.nan)
        columns = {
            "ttft_ms": found.ttft * 1e3,
            "tpot_ms": tpot * 1e3,
            "e2el_ms": found.e2el * 1e3,
            "prefill_throughput": found.prefill_throughput,
            "output_throughput_per_user": 1 / tpot,
            **{name: getattr(found, name) for name in RATES},
        }
    else:
        ttft = frontend_seconds(bound_plan) + prompt_seconds(bound_plan, batch_shape)
        columns = {
            "ttft_ms": ttft * 1e3,
            "e2el_ms": ttft * 1e3,
            "prefill_throughput": batch * batch_shape.new_tokens / ttft,
        }
    if np.any(lost):
        columns = {name: None if value is None else where(lost, math.nan, value) for name, value in columns.items()}
    many = batch_shape.sequences > case.request.plan.max_num_seqs
    return {**dict.fromkeys(FIGURES), **columns, **_memory(held)}, _reasons(case, lost, many, held.total > held.usable)


def _talk(case: Case, batch: Value, prompt: Value, answer: Value, prefix: Value) -> BatchShape:
    """The workloads of a mesh, with the images and beams of the case."""
    assert case.request is not None and case.bound_plan is not None
    work, network = case.request.workload, case.request.model
    batch_shape = uniform_batch_shape(
        case.bound_plan, batch, prompt, answer if network.kind == "decoder" else 0, prefix
    )
    batch_shape = batch_shape._replace(beams=work.beam_width)
    if work.images and network.vision:
        seen = images(network.vision, work.images.height, work.images.width, work.images.count)
        mine = np.asarray(batch_shape.batch_per_replica).item()
        batch_shape = batch_shape._replace(
            new_tokens=batch_shape.new_tokens + int(seen.tokens), images=Images(*(mine * x for x in seen))
        )
    return batch_shape


def _memory(held: Footprint) -> dict[str, Value]:
    return {
        "weights_bytes": held.weights,
        "kv_cache_bytes": held.cache,
        "total_bytes": held.total,
        "usable_bytes": held.usable,
    }


def _reasons(case: Case, lost: Value, many: Value, full: Value) -> Texts:
    """Why points cannot be used: the layout before the workload, the workload before the memory."""
    request = case.request
    assert request is not None
    if case.reason:
        return Texts(np.zeros((1,) * len(INNER), np.uint8), (case.reason,))
    usable = request.device.memory * request.plan.gpu_memory_utilization
    texts = (
        "",
        _PREFIX,
        _MANY.format(request.plan.max_num_seqs),
        _FULL.format(size(usable), request.engine.label or request.engine.name),
    )
    conditions = np.broadcast_arrays(lost, many, full, np.ones((1,) * len(INNER), bool))
    return Texts(np.select(conditions, [np.uint8(n) for n in (1, 2, 3, 0)]), texts)


def _one_by_one(case: Case, mesh: tuple[np.ndarray, ...]) -> tuple[dict[str, Any], Texts]:
    """Conversations, which have no lengths of their own: a report for every batch size."""
    assert case.request is not None
    reports = [
        report_of(case.request._replace(workload=msgspec.structs.replace(case.request.workload, batch_size=int(n))))
        for n in mesh[0].flat
    ]

    def column(values: list[Any]) -> np.ndarray:
        return np.array([math.nan if value is None else value for value in values], float).reshape(mesh[0].shape)

    columns = {name: column([getattr(r.metrics, name) for r in reports]) for name in Metrics.__struct_fields__}
    columns["output_throughput_per_user"] = 1e3 / columns["tpot_ms"]
    held = {name: column([getattr(r.memory, name) for r in reports]) for name in FIGURES if name.endswith("_bytes")}
    plan = case.request.plan
    mine = -(-mesh[0] // plan.data_parallel_size) * case.request.workload.beam_width
    full = held["total_bytes"] > held["usable_bytes"]
    return {**columns, **held}, _reasons(case, mesh[0] < 0, mine > plan.max_num_seqs, full)
