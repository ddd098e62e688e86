"""Listings for people: what the catalogue holds, and measured layers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ...base.errors import UnknownName
from ...base.units import count, plural, seconds, si, size
from ...inference.weights import active_parameters, parameters
from ...network import families
from ...specs import catalog
from ...specs.hosts import host
from .document import Column, Page, Paragraph, Part, TextTable

# Columns that a narrow screen leaves out, the highest number first; the others stay.
PRIORITY = {
    "active_params": 1,
    "memory_bandwidth": 1,
    "flops_16bit": 2,
    "max_position": 2,
    "quantization": 3,
    "fp8": 3,
    "layers": 4,
    "price_per_hour": 4,
    "family": 5,
    "interconnect": 5,
    "power": 6,
    "label": 7,
    "beam_width": 7,
    "ids": 8,
    "source": 9,
}
FOLDS = ("label", "versions", "source", "compute", "read_like")


def rows_page(rows: list[dict[str, Any]]) -> Page:
    """A table of rows: ``rows_page([{"name": "h200", "memory": 150.11e9}])``"""
    if not rows:
        return Page([Paragraph("nothing here")])
    columns = []
    for key in rows[0]:
        numbers = all(isinstance(row.get(key), int | float | None) for row in rows)
        columns.append(Column(key, ">" if numbers else "<", PRIORITY.get(key, 0), folds=key in FOLDS))
    table = TextTable(columns)
    for row in rows:
        table.add_row(*(shown(key, row.get(key)) for key in rows[0]))
    return Page([table])


def detail_page(figures: Mapping[str, Any]) -> Page:
    """Everything about one name: ``detail_page({"memory": 150.11e9, "links.nvlink.bandwidth": 450e9})``"""
    table = TextTable([Column("key", "<"), Column("value", "<", folds=True)], header=False)
    for key, value in figures.items():
        table.add_row(key, shown(key, value))
    return Page([table])


# ------------------------------------------------------------------ layers
# Measured layers of a model, for people: each part at the longest prompt and context, and how well they add up.


def layer_summary(profile: Mapping[str, Any]) -> Page:
    """What ``profile MODEL`` prints: ``layer_summary(profile_model("qwen3-0.6b", device="cpu"))``"""
    phases = profile["longest"]
    names = dict.fromkeys(name for phase in phases.values() for name in phase["seconds"])
    titles = [f"{phase} {phases[phase]['length']:,}" for phase in phases]
    table = TextTable([Column("layer", "<"), *map(Column, titles)], elsewhere="--json")
    for name in names:
        table.add_row(name, *(seconds(phases[phase]["seconds"].get(name)) for phase in phases))
    parts: list[Part] = [table] if names else []
    scaled = profile["calibration"]
    if scaled:
        layers = plural(scaled["num_layers"], "layer")
        parts.append(Paragraph(f"whole model, {layers}: wall time over the sum of the rows"))
        for phase in ("prefill", "decode"):
            fit = scaled[phase]
            parts.append(
                Paragraph(
                    f"{phase:8} × {fit['factor']:.3f}; then {100 * fit['mean_error']:.1f}% off on average, "
                    f"{100 * fit['max_error']:.1f}% at most, over {plural(fit['points'], 'point')}"
                )
            )
    return Page(parts)


# ------------------------------------------------------------------ listing
# What the catalogue holds, for ``show``: one row per name, or everything about one name.


KINDS = ("models", "hardware", "hosts", "engines", "precisions", "usecases", "agents", "families")


def listing(kind: str) -> list[dict[str, Any]]:
    """Rows of ``show KIND``: ``listing("hardware")[0]["name"]``"""
    if kind == "models":
        return [_model_row(name) for name in catalog.names("models")]
    if kind == "hardware":
        return [_device_row(name) for name in catalog.names("hardware")]
    if kind == "engines":
        return [
            {"name": e.name, "label": e.label, "version": e.version, "versions": ", ".join(e.versions)}
            for e in map(catalog.engine, catalog.names(kind))
        ]
    if kind == "hosts":
        return [
            {"name": h.name, "label": h.label, "launch": h.launch, "slowdown": h.slowdown}
            for h in map(host, catalog.names(kind))
        ]
    if kind == "precisions":
        return [
            {
                "name": p.name,
                "bits": p.bits,
                "bytes_per_weight": p.bytes,
                "compute": ", ".join(p.compute) or "model dtype",
                "label": p.label,
            }
            for p in catalog.precisions().values()
        ]
    if kind == "usecases":
        return [msgspec.to_builtins(u) for u in catalog.usecases().values()]
    if kind == "agents":
        return [msgspec.to_builtins(agent) for agent in catalog.agents().values()]
    if kind == "families":
        return [{"model_type": f, "read_like": families.RELATIVES.get(f, (f, {}))[0]} for f in families.families()]
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
    if kind == "hosts":
        return dict(msgspec.to_builtins(host(name)))
    if kind == "precisions":
        number_format = catalog.precision(name)
        return {**msgspec.to_builtins(number_format), "bytes": number_format.bytes}
    if kind == "usecases":
        return dict(msgspec.to_builtins(catalog.usecase(name)))
    if kind == "agents":
        if name not in catalog.agents():
            raise UnknownName("agent", name, catalog.agents())
        return dict(msgspec.to_builtins(catalog.agents()[name]))
    if kind == "families":
        if name not in families.families():
            raise UnknownName("family", name, families.families())
        return {"model_type": name, "read_like": families.RELATIVES.get(name, (name, {}))[0]}
    raise UnknownName("list", kind, KINDS)


def _model_row(name: str, entry: catalog.ModelEntry | None = None) -> dict[str, Any]:
    entry = entry or catalog.model(name)
    built = families.build(entry.config, name)
    return {
        "name": name,
        "family": built.family,
        "params": round(parameters(built)),
        "active_params": round(active_parameters(built)),
        "layers": built.num_layers,
        "max_position": built.max_position or None,
        "quantization": ", ".join(sorted(set(built.quantization.values()))) or built.dtype,
    }


def _device_row(name: str) -> dict[str, Any]:
    d = catalog.hardware(name)
    best = d.flops.get("bf16") or d.flops.get("fp16") or d.flops.get("fp32", 0.0)
    return {
        "name": name,
        "label": d.label,
        "memory": d.memory,
        "memory_bandwidth": d.memory_bandwidth,
        "flops_16bit": best,
        "fp8": d.flops.get("fp8"),
        "interconnect": d.interconnect,
        "power": d.power,
        "price_per_hour": d.price_per_hour,
    }


def shown(key: str, value: Any) -> str:
    """A cell for people: units by the name of the column, or of the last part of a key with dots."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(shown(key, one) for one in value)
    last = key.rpartition(".")[2]
    if last in ("params", "active_params"):
        return count(value)
    if last in ("memory", "cache"):
        return size(value)
    if last.endswith("bandwidth"):
        return si(value, "B/s")
    if last in ("launch", "latency", "ttft", "tpot"):
        return seconds(value)
    if last in ("clock", "power", "price_per_hour"):
        return si(value, "Hz") if last == "clock" else f"{value:g} W" if last == "power" else f"${value:g}/h"
    if key.startswith("flops") or key == "fp8":
        return si(value, "FLOP/s")
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
