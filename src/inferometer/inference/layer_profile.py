"""Layers of a model that were timed one by one (``profile MODEL``, LLM-Profile), as kernels by shape.

A row names a model and a layer, not a size. Sizes come from the catalogue's model of that name, from the config in the
record that ``profile MODEL`` writes beside its file, or, for ``--profile``, from the model that is analyzed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..base.errors import BadFile, InferometerError
from ..base.units import plural
from ..costs.kernels.measured import MeasuredKernel, record_beside
from ..specs import catalog
from .model_shapes import ModelShapes, model_shapes, shapes_of

if TYPE_CHECKING:
    import numpy as np

    from ..base.tabular import TableChunk

COLUMNS = ("hardware", "model", "layer_name", "input", "kv_cache", "latency(ns)")
NORMS = ("input_layernorm", "post_layernorm", "post_attention_layernorm", "final_layernorm")
NO_KIND = {
    "act_fn": "an activation without its gate is not a known kind of kernel",
    **dict.fromkeys(("expert.w1", "expert.w2", "expert.w3"), "an expert's share of the tokens is not in the file"),
    **dict.fromkeys(("qk_matmul", "softmax", "sv_matmul"), "a part of eager attention is not a known kind of kernel"),
}


class LayerKernels(NamedTuple):
    """Rows of a file that time one kind of kernel; a size is a number, or an array with one for each row."""

    kind: str
    dtype: str
    sizes: dict[str, Any]
    rows: np.ndarray


def layer_kernels(
    sheet: TableChunk, analyzed: Callable[[], ModelShapes] | None = None
) -> tuple[list[LayerKernels], Counter[str]]:
    """The layers of a file that are kernels of their own, and why the other rows are skipped (reason -> rows).

    ``analyzed``: the model whose sizes rows have that name a model which neither the catalogue nor a record has.
    """
    import numpy as np

    names, layers = (np.array([str(cell) for cell in sheet.columns[column]]) for column in ("model", "layer_name"))
    new, cached = sheet.numbers("input", whole=True, least=1), sheet.numbers("kv_cache", whole=True)
    kernels: list[LayerKernels] = []
    skipped: Counter[str] = Counter()
    for name in np.unique(names).tolist():
        model = _recorded_shapes(sheet.path, name) or model_shapes(name) or (analyzed() if analyzed else None)
        for layer in np.unique(layers[names == name]).tolist():
            rows = np.flatnonzero((names == name) & (layers == layer))
            if model is None:
                skipped[f"model {name!r} is not in the catalogue, and no record beside the file has its config"] += len(
                    rows
                )
            elif layer == "attn":
                kernels += _attention(model, new, cached, rows, skipped)
            else:
                kind, sizes = _shape(model, layer)
                if sizes:
                    kernels.append(LayerKernels(kind, model.dtype, {"m": new[rows], **sizes}, rows))
                else:
                    skipped[kind] += len(rows)
    return kernels, skipped


def layer_reader(analyzed: Callable[[], ModelShapes]) -> Callable[[TableChunk], list[MeasuredKernel]]:
    """Reads a table of layers for ``--profile``: ``user_profile("H200/tiny.csv", device, layer_reader(shapes))``"""

    def read(sheet: TableChunk) -> list[MeasuredKernel]:
        missing = [name for name in COLUMNS if name not in sheet.columns]
        if missing:
            raise BadFile(f"{sheet.path} lacks the column {missing[0]!r}, which a profile of layers has")
        seconds = sheet.numbers("latency(ns)") * 1e-9
        kernels, skipped = layer_kernels(sheet, analyzed)
        rows = [row for kernel in kernels for row in _measured(kernel, seconds)]
        if not rows:
            reasons = "; ".join(f"{plural(count, 'row')}: {reason}" for reason, count in skipped.most_common(3))
            raise BadFile(f"{sheet.path} has no layer that is a single kernel ({reasons or 'no rows'})")
        return rows

    return read


def _measured(kernel: LayerKernels, seconds: np.ndarray) -> list[MeasuredKernel]:
    """The rows of a kind, one by one, less those below the clock's resolution."""

    def column(value: Any) -> Sequence[Any]:
        return value.tolist() if hasattr(value, "tolist") else [value] * len(kernel.rows)

    sizes = zip(*(column(value) for value in kernel.sizes.values()), strict=True)
    return [
        MeasuredKernel(kernel.kind, kernel.dtype, dict(zip(kernel.sizes, size, strict=True)), duration)
        for size, duration in zip(sizes, seconds[kernel.rows].tolist(), strict=True)
        if duration > 0
    ]


def _recorded_shapes(path: Path, name: str) -> ModelShapes | None:
    """The shapes of the model whose config the record beside a file has; None where there is none, or of another."""
    record = record_beside(path)
    if record.get("model") != name or not isinstance(record.get("config"), dict):
        return None
    try:
        shapes = shapes_of(name, record["config"])
        measured_in = record.get("dtype")  # on a processor often float32, whatever the model's is
        return shapes._replace(dtype=catalog.plain_dtype(measured_in, "dtype")) if measured_in else shapes
    except InferometerError:
        return None


def _shape(model: ModelShapes, layer: str) -> tuple[str, dict[str, Any]]:
    """The kind of a layer and its sizes besides the tokens; or why there is none."""
    heads = model.attention
    if layer in NORMS:
        return "norm", {"n": model.hidden}
    if layer == "embedding":
        return "embedding", {"n": model.hidden, "rows": model.vocab}
    if layer == "rope" and heads:
        return "rope", heads._asdict()
    if layer in ("q_proj", "k_proj", "v_proj") and heads:
        width = heads.heads if layer == "q_proj" else heads.kv_heads
        return "linear", {"n": width * heads.head_dim, "k": model.hidden}
    both = model.products.get("gate_up_proj")
    if layer in ("gate_proj", "up_proj") and both:
        return "linear", {"n": both[0] // 2, "k": both[1]}
    product = model.products.get("router" if layer == "gate" else layer)
    if product:
        return "linear", {"n": product[0], "k": product[1]}
    return NO_KIND.get(layer, f"layer {layer!r} is not a known kind of kernel"), {}


def _attention(
    model: ModelShapes, new: np.ndarray, cached: np.ndarray, rows: np.ndarray, skipped: Counter[str]
) -> list[LayerKernels]:
    if model.attention is None:
        skipped[f"{model.name}'s attention differs from layer to layer"] += len(rows)
        return []
    decodes = cached[rows] > 0
    kernels = []
    for kind, at in (("prefill_attention", rows[~decodes]), ("decode_attention", rows[decodes & (new[rows] == 1)])):
        sizes = {"seqs": 1, **model.attention._asdict(), "new": new[at], "context": (new + cached)[at]}
        kernels.append(LayerKernels(kind, model.dtype, sizes, at))
    skipped["several tokens after a cached part"] += int((decodes & (new[rows] > 1)).sum())
    return kernels
