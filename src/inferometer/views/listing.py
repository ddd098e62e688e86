"""What the catalogue holds, for ``show``: one row per name, or everything about one name."""

from __future__ import annotations

from typing import Any

import msgspec

from .. import catalog, models
from ..errors import UnknownName
from ..memory import parameters
from ..units import count, si, size

KINDS = ("models", "hardware", "engines", "precisions", "usecases", "families")


def listing(kind: str) -> list[dict[str, Any]]:
    """Rows of ``show KIND``: ``listing("hardware")[0]["name"]``"""
    if kind == "models":
        return [_model_row(name) for name in catalog.names("models")]
    if kind == "hardware":
        return [_device_row(name) for name in catalog.names("hardware")]
    if kind == "engines":
        return [
            {"name": e.name, "label": e.label, "version": e.version} for e in map(catalog.engine, catalog.names(kind))
        ]
    if kind == "precisions":
        return [{"name": p.name, "bits": p.bits, "bytes_per_weight": p.bytes,
                 "compute": ", ".join(p.compute) or "model dtype",
                 "label": p.label} for p in catalog.precisions().values()]  # fmt: skip
    if kind == "usecases":
        return [msgspec.to_builtins(u) for u in catalog.usecases().values()]
    if kind == "families":
        return [{"model_type": f, "read_like": models.RELATIVES.get(f, (f, {}))[0]} for f in models.families()]
    raise UnknownName("list", kind, KINDS)


def detail(kind: str, name: str) -> dict[str, Any]:
    """Everything about one name: ``detail("hardware", "h200")["memory_bandwidth"]``"""
    if kind == "models":
        entry = catalog.model(name)
        return {**_model_row(entry.name, entry), "source": entry.source, "config": entry.config}
    if kind == "hardware":
        return dict(msgspec.to_builtins(catalog.hardware(name)))
    if kind == "engines":
        return dict(msgspec.to_builtins(catalog.engine(name)))
    if kind == "precisions":
        found = catalog.precision(name)
        return {**msgspec.to_builtins(found), "bytes": found.bytes}
    if kind == "usecases":
        return dict(msgspec.to_builtins(catalog.usecase(name)))
    if kind == "families":
        if name not in models.families():
            raise UnknownName("family", name, models.families())
        return {"model_type": name, "read_like": models.RELATIVES.get(name, (name, {}))[0]}
    raise UnknownName("list", kind, KINDS)


def _model_row(name: str, entry: catalog.Entry | None = None) -> dict[str, Any]:
    entry = entry or catalog.model(name)
    built = models.build(entry.config, name)
    return {
        "name": name,
        "family": built.family,
        "params": round(parameters(built)),
        "active_params": round(parameters(built, "active")),
        "layers": built.num_layers,
        "max_position": built.max_position or None,
        "quantization": ", ".join(sorted(set(built.quantization.values()))) or built.dtype,
    }


def _device_row(name: str) -> dict[str, Any]:
    d = catalog.hardware(name)
    best = d.flops.get("bf16") or d.flops.get("fp16") or d.flops.get("fp32", 0.0)
    return {"name": name, "label": d.label, "memory": d.memory, "memory_bandwidth": d.memory_bandwidth,
            "flops_16bit": best,
            "fp8": d.flops.get("fp8"), "interconnect": d.interconnect, "power": d.power,
            "price_per_hour": d.price_per_hour}  # fmt: skip


def shown(key: str, value: Any) -> str:
    """A cell for people: units by the name of the column."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if key in ("params", "active_params"):
        return count(value)
    if key == "memory":
        return size(value)
    if key.endswith("bandwidth"):
        return si(value, "B/s")
    if key.startswith("flops") or key in ("fp8",):
        return si(value, "FLOP/s")
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
