"""A measuring campaign: shapes in order of worth within a budget of time, resumed where an earlier one stopped."""

from __future__ import annotations

import csv
import importlib
import io
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from . import clock
from .kernels import CASES, Bench

HEAD = ("kind", "dtype", "shape", "seconds", "source")


def bench(device: str = "cuda") -> Bench:
    """The machine at hand: torch, and vLLM's kernels where it can be imported."""
    torch = importlib.import_module("torch")
    return Bench(torch, device, _vllm() if device == "cuda" else None, {})


def _vllm() -> Any:
    try:
        custom = importlib.import_module("vllm._custom_ops")
        attention = importlib.import_module("vllm.vllm_flash_attn")
        moe = importlib.import_module("vllm.model_executor.layers.fused_moe.fused_moe")
        context = importlib.import_module("vllm.config")
    except ImportError:
        return None
    context.set_current_vllm_config(context.VllmConfig()).__enter__()
    fa3 = attention.is_fa_version_supported(3)
    return SimpleNamespace(_custom_ops=custom, flash=attention.flash_attn_varlen_func, flash_version=3 if fa3 else 2,
                           plan=attention.get_scheduler_metadata, fused_experts=moe.fused_experts_impl)  # fmt: skip


def done(path: Path) -> dict[tuple[str, str, str], float]:
    """Rows that a file already has, by kind, dtype and shape."""
    if not path.exists():
        return {}
    with path.open(newline="", encoding="utf-8") as file:
        return {(r["kind"], r["dtype"], r["shape"]): float(r["seconds"]) for r in csv.DictReader(file)}


def shape_of(row: dict[str, Any]) -> str:
    """The shape as one cell: ``m=8 n=4096 k=4096``"""
    return " ".join(f"{k}={v}" for k, v in row.items() if k not in ("kind", "dtype"))


def measure(rows: Iterable[dict[str, Any]], path: Path, *, budget: float, device: str = "cuda",
            progress: Callable[[int, int, float], None] | None = None) -> dict[str, int]:  # fmt: skip
    """Measure what is not in the file yet, until the budget is spent; each row is written as it is found."""
    where, todo, known = bench(device), list(rows), done(path)
    counts = {"measured": 0, "kept": 0, "failed": 0, "left": 0}
    began = time.monotonic()
    fresh = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        if fresh:
            writer.writerow(HEAD)
        for number, row in enumerate(todo):
            spent = time.monotonic() - began
            if spent > budget:
                counts["left"] = len(todo) - number
                break
            shape = shape_of(row)
            if (row["kind"], row["dtype"], shape) in known:
                counts["kept"] += 1
                continue
            if progress and number % 500 == 0:
                progress(number, len(todo), spent)
            sizes = {k: v for k, v in row.items() if k != "kind"}
            try:
                ready = CASES[row["kind"]](where, **sizes)
                took = clock.seconds(where.torch, ready.calls, device)
            except Exception as error:  # a shape that a library refuses is a row that is missing, not the end
                counts["failed"] += 1
                if counts["failed"] <= 20:
                    print(f"{row['kind']} {shape}: {type(error).__name__}: {str(error)[:160]}", flush=True)
                where.shelf.clear()
                continue
            writer.writerow((row["kind"], row["dtype"], shape, f"{took:.4e}", ready.source))
            file.flush()
            counts["measured"] += 1
    return counts


def machine(device: str = "cuda") -> str:
    """Versions and the device, as JSON: what a profile is worth depends on it."""
    torch = importlib.import_module("torch")
    found: dict[str, Any] = {"torch": torch.__version__, "device": device}
    if device == "cuda":
        p = torch.cuda.get_device_properties(0)
        found |= {"name": p.name, "units": p.multi_processor_count, "memory": p.total_memory, "l2": p.L2_cache_size,
                  "cuda": torch.version.cuda}  # fmt: skip
        try:
            found["vllm"] = importlib.import_module("vllm").__version__
        except ImportError:
            found["vllm"] = None
    out = io.StringIO()
    json.dump(found, out)
    return out.getvalue()
