"""The points of a case, evaluated together: every metric of a box of its mesh as arrays that broadcast.

for chunk in chunks(grid):
    chunk.column("tpot_ms")       # the rows from chunk.start on: a number if all are alike, else an array
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice, product
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.symbols import Value, minimum_of, where
from ..base.units import size
from ..costs.step import Images, images
from ..inference.analyze import report_of
from ..inference.latency import predict
from ..inference.memory import Footprint, cache_offloaded, footprint
from ..inference.report import Metrics
from ..inference.workload import BatchShape, uniform_batch_shape
from ..specs.arguments import flag
from ..specs.structs import Engine
from .grid import INNER_AXES, Case, Grid, kind

CHUNK_POINTS = 262_144  # enough that NumPy does the work, few enough that memory stays small
PART_POINTS = 4 * CHUNK_POINTS  # of a file where a table is many: some 40 MB of Parquet
PLAN_COLUMNS = (
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
    "watts_per_gpu",
)
METRICS = (
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
_TOO_MANY_SEQS = f"more sequences on a replica than {flag('max_num_seqs')} {{:,}}: they would not all run at once"
_PREFIX_TOO_LONG = f"{flag('prefix_len')} must be shorter than the input"
_OUT_OF_MEMORY = "needs more memory than the {} per GPU that {} may use"


# ------------------------------------------------------------------ chunks of a table


class Categorical(NamedTuple):
    """A column of few different texts: ``categories[codes[row]]``"""

    codes: np.ndarray
    categories: tuple[str, ...]


class Chunk(NamedTuple):
    """Rows that follow each other: constants, arrays that broadcast to ``shape``, and categorical texts."""

    start: int
    shape: tuple[int, ...]
    columns: dict[str, Any]

    def __len__(self) -> int:
        return math.prod(self.shape)

    def column(self, name: str) -> Any:
        """A constant, or one value (of texts, one code) per row."""
        values = self.columns[name]
        if isinstance(values, Categorical):
            return Categorical(np.broadcast_to(values.codes, self.shape).ravel(), values.categories)
        if isinstance(values, np.ndarray):
            return np.broadcast_to(values, self.shape).ravel()
        return values


def column_kinds(grid: Grid) -> dict[str, str]:
    """The columns of a grid's table in order, and what each holds: 'word', 'whole', 'switch' or 'real'."""
    given = {**dict.fromkeys(PLAN_COLUMNS), **grid.outer, **dict.fromkeys(INNER_AXES[:3]), **grid.inner}
    kinds = {name: "int" if name == "gpus" else kind(name) for name in given}
    return {**kinds, "feasible": "switch", "reason": "text", **dict.fromkeys(METRICS, "float")}


def rows(chunk: Chunk, kinds: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The points of a chunk as dicts."""
    names = list(kinds)
    return (dict(zip(names, values, strict=True)) for values in zip(*_cells(chunk, kinds), strict=True))


def _cells(chunk: Chunk, kinds: Mapping[str, str]) -> Iterator[list[Any]]:
    """The columns of a chunk as lists of plain values, None where there is none."""
    for name, holds in kinds.items():
        column = chunk.column(name)
        if isinstance(column, Categorical):
            texts = [text or None for text in column.categories]
            yield [texts[code] for code in column.codes.tolist()]
        elif isinstance(column, np.ndarray):
            missing = column.dtype == float and np.isnan(column)
            whole = column.astype(np.int64) if holds == "int" and not np.any(missing) else column
            values = whole.tolist()
            yield [None if lost else v for v, lost in zip(values, missing, strict=True)] if np.any(missing) else values
        else:
            value = cell(column)
            yield [int(value) if holds == "int" and value is not None else value] * len(chunk)


def cell(value: Any) -> Any:
    """One value of a column as Python has it; nan and the empty text are None."""
    plain = value.item() if hasattr(value, "item") else value
    return None if plain != plain or plain == "" else plain


def axis_cell(value: Any) -> Any:
    """A value of an axis as a cell of a table: texts and numbers as they are, anything else as JSON."""
    plain = value is None or isinstance(value, str | bool | int | float)
    return value if plain else msgspec.json.encode(value).decode()


# ------------------------------------------------------------------ boxes of a mesh


class GridPart(NamedTuple):
    """Rows of a grid that make a file: some cases, or some boxes of one."""

    number: int
    cases: range
    boxes: slice
    start: int  # its first row
    points: int


def parts(grid: Grid, most: int = PART_POINTS) -> Iterator[GridPart]:
    """A grid cut into parts of about ``most`` points, the same however they are computed."""
    each = grid.points_per_case
    if each <= most:
        step = most // each
        for number, first in enumerate(range(0, grid.num_cases, step)):
            cases = range(first, min(first + step, grid.num_cases))
            yield GridPart(number, cases, slice(None), first * each, len(cases) * each)
        return
    shape = tuple(len(grid.inner.get(name, (0,))) for name in INNER_AXES)
    sizes = [math.prod(side.stop - side.start for side in box) for box in boxes(shape, CHUNK_POINTS)]
    step = max(1, most // max(sizes))  # boxes of a part
    number = start = 0
    for case, first in product(range(grid.num_cases), range(0, len(sizes), step)):
        points = sum(sizes[first : first + step])
        yield GridPart(number, range(case, case + 1), slice(first, first + step), start, points)
        number, start = number + 1, start + points


def chunks(grid: Grid, threads: int | None = None, most: int = CHUNK_POINTS) -> Iterator[Chunk]:
    """All points of a grid, in the order of rows, evaluated by threads a few chunks ahead of the consumer."""
    whole = GridPart(0, range(grid.num_cases), slice(None), 0, grid.points)
    return part_chunks(grid, [whole], threads, most)


def part_chunks(
    grid: Grid, some: Iterable[GridPart], threads: int | None = None, most: int = CHUNK_POINTS
) -> Iterator[Chunk]:
    """The points of some parts of a grid."""
    workers = threads or os.cpu_count() or 1
    waiting: deque[Future[Chunk]] = deque()
    pool = ThreadPoolExecutor(workers)
    try:
        for start, case, box in _boxes(grid, some, most):
            waiting.append(pool.submit(_evaluate, case, start, box))
            if len(waiting) > 2 * workers:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _boxes(grid: Grid, some: Iterable[GridPart], most: int) -> Iterator[tuple[int, Case, tuple[slice, ...]]]:
    """The boxes of some parts: their first rows, and their cases."""
    case: Case | None = None
    for part in some:
        start = part.start
        for number in part.cases:
            if case is None or case.number != number:
                case = grid.case(number)
            for box in islice(boxes(case.shape, most), part.boxes.start, part.boxes.stop):
                yield start, case, box
                start += math.prod(side.stop - side.start for side in box)


def boxes(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """A mesh cut into boxes of at most ``most`` points, each a run of rows: ``boxes((4, 100), 200)``"""
    inner = math.prod(shape[1:])
    if len(shape) > 1 and inner > most:
        for index in range(shape[0]):
            yield from ((slice(index, index + 1), *rest) for rest in boxes(shape[1:], most))
        return
    step = max(1, most // inner)
    for index in range(0, shape[0], step):
        yield (slice(index, min(index + step, shape[0])), *(slice(0, n) for n in shape[1:]))


def _evaluate(case: Case, start: int, box: tuple[slice, ...]) -> Chunk:
    """The rows of a box of a case."""
    axes = [values[part] for values, part in zip(case.mesh, box, strict=True)]
    shape = tuple(map(len, axes))
    mesh = np.ix_(*axes)
    columns = {**_plan_columns(case), **dict(zip(INNER_AXES, mesh, strict=True))}
    metrics: dict[str, Any] = dict.fromkeys(METRICS)
    reason = Categorical(np.zeros((1,) * len(shape), np.uint8), (case.reason,))
    if case.request is not None:
        metrics, reason = (_conversations if case.request.workload.turns else _mesh_metrics)(case, mesh)
    columns |= {"feasible": np.array(reason.categories) == "", "reason": reason, **metrics}
    columns["feasible"] = columns["feasible"][reason.codes]
    return Chunk(start, shape, columns)


def _plan_columns(case: Case) -> dict[str, Any]:
    """What all points of a case have in common: the layout and the precision, and every argument that was given."""
    given = {name: axis_cell(value) for name, value in case.arguments.items()}
    sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
    columns = {**dict.fromkeys(PLAN_COLUMNS), **dict.fromkeys(sizes, 1), "enable_expert_parallel": False, **given}
    columns["gpus"] = math.prod(columns[name] for name in sizes)
    if case.request is not None:
        plan = case.request.plan
        columns |= {
            "engine": _engine_name(case.request.engine),
            "quantization": plan.quantization,
            "kv_cache_dtype": plan.kv_cache_dtype,
        }
    return columns


# ------------------------------------------------------------------ metrics


def _mesh_metrics(case: Case, mesh: tuple[np.ndarray, ...]) -> tuple[dict[str, Any], Categorical]:
    """Metrics of a mesh, and why points of it cannot be used. With images, one batch size at a time."""
    assert case.request is not None
    if not case.request.workload.images or len(mesh[0]) == 1:
        return _vectorised(case, mesh)
    shape = np.broadcast_shapes(*(axis.shape for axis in mesh))[1:]
    parts = [_vectorised(case, (mesh[0][i : i + 1], *mesh[1:])) for i in range(len(mesh[0]))]

    def joined(values: list[Any]) -> Any:
        return np.concatenate([np.broadcast_to(value, (1, *shape)) for value in values])

    columns = {
        name: None if parts[0][0][name] is None else joined([metrics[name] for metrics, _ in parts]) for name in METRICS
    }
    return columns, Categorical(joined([reason.codes for _, reason in parts]), parts[0][1].categories)


def _vectorised(case: Case, mesh: tuple[np.ndarray, ...]) -> tuple[dict[str, Any], Categorical]:
    """Metrics and reasons of all points at once; mesh: (batch, 1, 1, 1), (1, input, 1, 1) …"""
    assert case.request is not None and case.bound_plan is not None
    one_point = all(axis.size == 1 for axis in mesh)  # six times as fast in plain numbers
    batch, input_len, output_len, prefix_len = (axis.item() for axis in mesh) if one_point else mesh
    prefix_too_long = prefix_len >= input_len
    prefix_len = minimum_of(prefix_len, input_len - 1)
    batch_shape = _batch_shape(case, batch, input_len, output_len, prefix_len)
    bound_plan = cache_offloaded(case.bound_plan, batch_shape)
    held = footprint(bound_plan, batch_shape)
    decodes = case.request.model.kind == "decoder"
    prediction = predict(bound_plan, batch_shape, "all" if decodes else "prefill")
    columns = {
        "ttft_ms": prediction.ttft * 1e3,
        "e2el_ms": prediction.e2el * 1e3,
        "prefill_throughput": prediction.prefill_throughput,
        "watts_per_gpu": prediction.watts_per_gpu,
    }
    if decodes:
        tpot = where(output_len > 1, prediction.tpot, math.nan)
        columns |= {"tpot_ms": tpot * 1e3, "output_throughput_per_user": 1 / tpot}
        columns |= {name: getattr(prediction, name) for name in RATES}
    if np.any(prefix_too_long):
        columns = {
            n: None if value is None else where(prefix_too_long, math.nan, value) for n, value in columns.items()
        }
    too_many = batch_shape.sequences > case.request.plan.max_num_seqs
    reasons = _reasons(case, prefix_too_long, too_many, held.total > held.usable)
    return {**dict.fromkeys(METRICS), **columns, **_memory(held)}, reasons


def _batch_shape(case: Case, batch: Value, input_len: Value, output_len: Value, prefix_len: Value) -> BatchShape:
    """The workloads of a mesh, with the images and beams of the case."""
    assert case.request is not None and case.bound_plan is not None
    work, network = case.request.workload, case.request.model
    batch_shape = uniform_batch_shape(
        case.bound_plan, batch, input_len, output_len if network.kind == "decoder" else 0, prefix_len
    )
    batch_shape = batch_shape._replace(beams=work.beam_width)
    if work.images and network.vision:
        seen = images(network.vision, work.images.height, work.images.width, work.images.count)
        sequences = np.asarray(batch_shape.batch_per_replica).item()
        batch_shape = batch_shape._replace(
            new_tokens=batch_shape.new_tokens + int(seen.tokens), images=Images(*(sequences * x for x in seen))
        )
    return batch_shape


def _memory(held: Footprint) -> dict[str, Value]:
    return {
        "weights_bytes": held.weights,
        "kv_cache_bytes": held.cache,
        "total_bytes": held.total,
        "usable_bytes": held.usable,
    }


def _engine_name(engine: Engine) -> str:
    """``vllm``, or ``vllm@0.15`` where it is not the newest version."""
    newest = not engine.versions or engine.version == engine.versions[-1]
    return engine.name if newest else f"{engine.name}@{engine.version}"


def _reasons(case: Case, prefix_too_long: Value, too_many: Value, full: Value) -> Categorical:
    """Why points cannot be used: the layout before the workload, the workload before the memory."""
    request = case.request
    assert request is not None
    if case.reason:
        return Categorical(np.zeros((1,) * len(INNER_AXES), np.uint8), (case.reason,))
    usable = request.device.memory * (
        request.plan.gpu_memory_utilization if request.engine.memory_share_of == "device" else 1
    )
    texts = (
        "",
        _PREFIX_TOO_LONG,
        _TOO_MANY_SEQS.format(request.plan.max_num_seqs),
        _OUT_OF_MEMORY.format(size(usable), request.engine.label or request.engine.name),
    )
    conditions = np.broadcast_arrays(prefix_too_long, too_many, full, np.ones((1,) * len(INNER_AXES), bool))
    return Categorical(np.select(conditions, [np.uint8(n) for n in (1, 2, 3, 0)]), texts)


def _conversations(case: Case, mesh: tuple[np.ndarray, ...]) -> tuple[dict[str, Any], Categorical]:
    """Conversations of several turns, of which no length is an axis: a report for every batch size."""
    assert case.request is not None
    reports = [
        report_of(case.request._replace(workload=msgspec.structs.replace(case.request.workload, batch_size=int(n))))
        for n in mesh[0].flat
    ]

    def column(values: list[Any]) -> np.ndarray:
        return np.array([math.nan if value is None else value for value in values], float).reshape(mesh[0].shape)

    columns = {name: column([getattr(r.metrics, name) for r in reports]) for name in Metrics.__struct_fields__}
    columns["output_throughput_per_user"] = 1e3 / columns["tpot_ms"]
    held = {name: column([getattr(r.memory, name) for r in reports]) for name in METRICS if name.endswith("_bytes")}
    plan = case.request.plan
    sequences = np.ceil(mesh[0] / plan.data_parallel_size) * case.request.workload.beam_width
    full = held["total_bytes"] > held["usable_bytes"]
    return {**columns, **held}, _reasons(case, mesh[0] < 0, sequences > plan.max_num_seqs, full)
