"""Plain text tables for listings: aligned columns, nothing else to load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ...base.errors import UnknownName
from ...base.units import count, seconds, si, size
from ...inference.memory import active_parameters, parameters
from ...network import families
from ...specs import catalog
from ...specs.hosts import host


def plain_table(rows: list[dict[str, Any]], shown: Callable[[str, Any], str]) -> str:
    """``plain_table([{"name": "h200", "memory": 150.11e9}], shown)``"""
    if not rows:
        return "nothing here\n"
    keys = list(rows[0])
    cells = [[shown(k, row.get(k)) for k in keys] for row in rows]
    right = [all(isinstance(row.get(k), int | float | None) for row in rows) for k in keys]
    widths = [max(len(k), *(len(line[i]) for line in cells)) for i, k in enumerate(keys)]

    def line(values: list[str]) -> str:
        pieces = [v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right, strict=True)]
        return "  ".join(pieces).rstrip() + "\n"

    return line(keys) + line(["─" * w for w in widths]) + "".join(line(c) for c in cells)


# ------------------------------------------------------------------ layers
# Measured layers of a model, for people: each part at the longest prompt and context, and how well they add up.


def layer_summary(profile: Mapping[str, Any]) -> str:
    """What ``profile MODEL`` prints: ``layer_summary(profile_model("qwen3-0.6b", device="cpu"))``"""
    phases = profile["longest"]
    names = dict.fromkeys(name for phase in phases.values() for name in phase["seconds"])
    titles = {phase: f"{phase} {phases[phase]['length']:,}" for phase in phases}
    rows = [{"layer": n, **{titles[phase]: phases[phase]["seconds"].get(n) for phase in phases}} for n in names]
    text = plain_table(rows, lambda key, value: value if isinstance(value, str) else seconds(value)) if rows else ""
    scaled = profile["calibration"]
    if scaled:
        text += f"\nwhole model, {scaled['num_layers']} layers: its wall time over the sum of its rows\n"
        for phase in ("prefill", "decode"):
            fit = scaled[phase]
            text += (
                f"{phase:8} × {fit['factor']:.3f}; then {100 * fit['mean_error']:.1f}% off on average, "
                f"{100 * fit['max_error']:.1f}% at most, over {fit['points']} points\n"
            )
    return text


# ------------------------------------------------------------------ listing
# What the catalogue holds, for ``show``: one row per name, or everything about one name.


KINDS = ("models", "hardware", "hosts", "engines", "precisions", "usecases", "families")


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
    """A cell for people: units by the name of the column."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if key in ("params", "active_params"):
        return count(value)
    if key == "memory":
        return size(value)
    if key.endswith("bandwidth"):
        return si(value, "B/s")
    if key == "launch":
        return seconds(value)
    if key.startswith("flops") or key in ("fp8",):
        return si(value, "FLOP/s")
    if isinstance(value, float):
        return f"{value:.4g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
