"""Steps of the real engine on one H200 against predictions: decode at full batch, time to first token, memory.

    python benchmarks/engine_steps.py           prints the tables of docs/accuracy/engine-steps.md

Rows of benchmarks/data, all of which were measured for this project. Kernels come from kernel timings alone; six
figures of engine and chip (`FIGURES`) were chosen with steps in view, so they are also chosen anew without each model,
by the same search for all.
"""

from __future__ import annotations

import csv
import json
import tempfile
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from measurements import DATA, measured_model

from inferometer.costs.binding import BoundPlan, step_activity
from inferometer.costs.power import Activity
from inferometer.costs.step import Group, Step
from inferometer.inference import latency
from inferometer.inference.memory import max_total_tokens, memory_table
from inferometer.inference.request import Request, build_request
from inferometer.inference.workload import batch_shape_of
from inferometer.specs import catalog

FIRST = DATA / "h200_static_first.csv"  # the H200 that figures were chosen with
OWN = DATA / "h200_static.csv"
MORE = DATA / "h200_static_more.csv"  # two other H200s
WEAK = DATA / "h200_static_weak.csv"  # a fifth one: kinds that were predicted badly
BETWEEN = DATA / "h200_static_between.csv"  # one more: batches between the sizes of CUDA graphs, and beyond them
UNSEEN = DATA / "h200_static_unseen.csv"  # machines 6 and 14: models measured after the forms were frozen
PROFILED = DATA / "h200_static_profiled.csv"  # three more: more of these, on machines that `profile --quick` measured
SETS = {
    "steps-own": OWN,
    "steps-more": MORE,
    "steps-weak": WEAK,
    "steps-between": BETWEEN,
    "steps-unseen": UNSEEN,
    "steps-profiled": PROFILED,
    "steps-shared": FIRST,
}
# s of a step that only simulated routing takes: 128 experts of its choice are packed for the kernels, 66 us a layer
# (moe_routing in h200_kernels_engine.csv, with chosen=1 less without); a real router's choice is not
PACKING = {"gpt-oss-120b": 36 * 66e-6}
FEWER_SEQUENCES = {"granite-4.0-h-small": 128}  # than 512, where it is how far CUDA graphs reach
NAMES = {"mixtral-8x7b": "mixtral-8x7b-v0.1"}
MACHINES = {FIRST: "first", OWN: "another", BETWEEN: "one more"}  # of files that have no column for it
CHOSEN_ON = {  # rows that constants were chosen with say nothing of how well others are met
    ("first", "", ""),
    ("3", "gpt-oss-20b", "decode"),
    ("2", "deepseek-v2-lite", "decode"),
    ("11", "nemotron-h-8b", "decode"),
}
KINDS = {
    "decode": "decode step",
    "long": "TTFT, over 512 tokens",
    "short": "TTFT, up to 512",
    "many": "TTFT of the last, several steps",
}
FIGURES: dict[str, tuple[float, ...]] = {  # what was chosen with steps in view, and the values that are tried
    "step_overhead": (1.2e-4, 1.5e-4, 1.7e-4, 2.0e-4, 2.4e-4),
    "request_overhead": (2.0e-3, 2.5e-3, 3.0e-3, 3.5e-3, 4.0e-3),
    "prefill_attention": (2.1e-4, 2.3e-4, 2.5e-4, 2.7e-4, 3.0e-4),
    "moe": (0.7e-3, 0.9e-3, 1.1e-3, 1.3e-3, 1.5e-3),
    "throttle": (0.08, 0.10, 0.12, 0.14, 0.16),
    "throttle_after": (0.05, 0.075, 0.1, 0.15),
}


class Part(NamedTuple):
    """Rows of one model: decode steps, or prompts of one step below or above 512 tokens, or of many steps."""

    batch: np.ndarray
    length: np.ndarray
    seconds: np.ndarray


Rows = dict[str, Part]


def machine_of(path: Path, row: dict[str, str]) -> str:
    """The H200 that a row is of."""
    return row.get("machine") or MACHINES[path]


def machines(path: Path) -> list[str]:
    """The H200s that a file has rows of: ``machines(MORE)  # ['2', '3']``"""
    with path.open(newline="", encoding="utf-8") as file:
        return sorted({machine_of(path, row) for row in csv.DictReader(file)})


def chosen_on(machine: str, model: str, kind: str) -> bool:
    """Whether a constant was chosen with such rows: ``chosen_on("first", "llama-2-7b", "decode")``"""
    return not CHOSEN_ON.isdisjoint({(machine, "", ""), (machine, model, kind)})


def rows(path: Path, machine: str = "") -> dict[tuple[str, str], Rows]:
    """The rows of a file by model and precision, of all machines or of one."""
    tables: dict[tuple[str, str], dict[str, list[tuple[float, float, float]]]] = defaultdict(lambda: defaultdict(list))
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row.get("routing") == "dummy" or (machine and machine_of(path, row) != machine):
                continue  # untrained routers choose few experts
            cache_dtype = row.get("kv_cache_dtype") or "auto"
            precision = row["precision"] + (f", {cache_dtype} cache" if cache_dtype != "auto" else "")
            table = tables[NAMES.get(row["model"], row["model"]), precision]
            batch, length = int(row["batch"]), int(row["input_len"])
            if row["decode_step_ms"]:
                took = float(row["decode_step_ms"]) / 1e3 - PACKING.get(row["model"], 0.0)
                table["decode"].append((batch, float(row["decode_context"]), took))
            if row["last_ttft_ms"]:
                kind = "many" if row["prefill_steps"] != "1" else "long" if batch * length > 512 else "short"
                table[kind].append((batch, length, float(row["last_ttft_ms"]) / 1e3))
    return {
        key: {kind: Part(*np.array(part, float).T) for kind, part in parts.items()} for key, parts in tables.items()
    }


def measured_request(model: str, precision: str, profile: Path | None = None) -> Request:
    """The engine as it was measured: vLLM on one H200, 512 sequences, 8,192 tokens a step."""
    machine = {"host_profile": "h200-vm"} if profile is None else {"profile": str(profile)}
    quantization, _, cache_dtype = precision.removesuffix(" cache").partition(", ")
    return build_request(
        measured_model(model),
        "h200",
        engine="vllm@0.25",
        max_num_seqs=FEWER_SEQUENCES.get(model, 512),
        max_num_batched_tokens=8192,
        quantization=quantization,
        kv_cache_dtype=cache_dtype or "bf16",
        **machine,
    )


@cache
def bound_plan(model: str, precision: str, profile: Path | None = None) -> BoundPlan:
    """The same, ready to be estimated."""
    return measured_request(model, precision, profile).bind()


def with_figures(s: BoundPlan, figures: dict[str, float]) -> BoundPlan:
    """The same setup with other figures of engine and chip."""
    e = s.engine
    launch = {**e.launch, **{kind: figures[kind] for kind in ("prefill_attention", "moe") if kind in figures}}
    own = {key: value for key, value in figures.items() if key in ("step_overhead", "request_overhead")}
    env = {**s.env, **{key: value for key, value in figures.items() if key.startswith("throttle")}}
    return s._replace(engine=msgspec.structs.replace(e, launch=launch, **own), env=env)


def activity(s: BoundPlan, kind: str, part: Part) -> Activity:
    """What we predict for rows of a kind, without the front end."""
    if kind == "decode":
        return step_activity(s, Step((Group(part.batch, 1.0, part.length - 1, 1, True),)))
    return latency.pipelined_activity(s, latency.budgeted_prefill(s, part.batch, part.length))


def errors(s: BoundPlan, parts: Rows) -> dict[str, np.ndarray]:
    """Relative errors of each kind of rows."""
    return {
        kind: (activity(s, kind, part).seconds + (0.0 if kind == "decode" else s.engine.request_overhead))
        / part.seconds
        - 1
        for kind, part in parts.items()
    }


def table(path: Path) -> str:
    """Mean absolute error and bias in percent, a line a model."""
    return _lines({key: errors(bound_plan(*key), parts) for key, parts in sorted(rows(path).items())})


def profiled() -> str:
    """Rows of machines without and with what ``profile --quick`` measured there, a line a model and kind of step."""
    lines = [
        "| machine | model | kind | any machine | with its `profile --quick` |",
        "|---|---|---|---|---|",
    ]
    for machine in sorted(machines(PROFILED), key=int):
        profile = DATA / f"h200_machine_{machine}.toml"  # what it wrote there
        for (model, precision), parts in sorted(rows(PROFILED, machine).items()):
            before, after = (errors(bound_plan(model, precision, one), parts) for one in (None, profile))
            lines += [
                f"| {machine} | {model} {precision} | {label} | {_cell(before[kind])} | {_cell(after[kind])} |"
                for kind, label in KINDS.items()
                if kind in parts
            ]
    return "\n".join(lines)


def _lines(errors_by_model: dict[tuple[str, str], dict[str, np.ndarray]]) -> str:
    lines = [f"| model | {' | '.join(KINDS.values())} |", "|---|---|---|---|---|"]
    for (model, precision), parts in errors_by_model.items():
        cells = [_cell(parts.get(kind)) for kind in KINDS]
        lines.append(f"| {model} {precision} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(off: np.ndarray | None) -> str:
    if off is None:
        return "–"
    return f"{np.abs(off).mean():.1%}, bias {off.mean():+.1%} ({len(off)})"


def chosen_without(left: tuple[str, str], every: dict[tuple[str, str], Rows]) -> dict[str, float]:
    """The figures that serve the other models best: each in turn the best of its values, twice around."""
    others = {key: parts for key, parts in every.items() if key != left and key[0] != "deepseek-v2-lite"}
    figures = {key: values[len(values) // 2] for key, values in FIGURES.items()}

    def loss() -> float:
        all_off = [errors(with_figures(bound_plan(*key), figures), parts) for key, parts in others.items()]
        seen = [off for parts in all_off for kind, off in parts.items() if kind != "many"]
        return float(np.mean([np.median(np.abs(off)) for off in seen]))

    for _ in range(2):
        for key, values in FIGURES.items():
            scores = {}
            for value in values:
                figures[key] = value
                scores[value] = loss()
            figures[key] = min(scores, key=lambda value: (scores[value], value))
    return figures


@cache
def left_out() -> dict[tuple[str, str], dict[str, np.ndarray]]:
    """Errors of each model of the first machine with the six figures chosen on all others."""
    every = {**rows(OWN), **rows(FIRST)}
    errors_by_model = {}
    for key in sorted(rows(FIRST)):
        if key[0] != "deepseek-v2-lite":
            errors_by_model[key] = errors(with_figures(bound_plan(*key), chosen_without(key, every)), every[key])
    return errors_by_model


def memory_rows() -> list[dict[str, str]]:
    """What engines reported of their memory."""
    with (DATA / "h200_memory.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def predicted_memory(row: dict[str, str]) -> tuple[float, int]:
    """Weights, and tokens of the KV cache in the engine's share of memory or in the bytes that it was given."""
    name, text = row["model"].removesuffix("-text"), row["model"].endswith("-text")
    with tempfile.TemporaryDirectory() as folder:
        model = name
        if text:  # the language model of a multimodal one, alone
            model = str(Path(folder) / "config.json")
            Path(model).write_text(json.dumps(catalog.model(name).config["text_config"]), encoding="utf-8")
        request = build_request(
            model,
            "h200",
            engine="vllm@0.25",
            max_num_seqs=512,
            max_num_batched_tokens=8192,
            gpu_memory_utilization=float(row["gpu_memory_utilization"] or 0.92),
            quantization=row["quantization"],
            kv_cache_dtype=row["kv_cache_dtype"],
            max_model_len=int(row["max_model_len"]),
        )
    plan = request.bind()
    held = memory_table(plan, batch_shape_of(plan, request.workload))
    if row.get("kv_cache_memory_bytes"):
        tokens = max_total_tokens(plan, float(row["kv_cache_memory_bytes"]), int(row["max_model_len"]))
        return held.weights_bytes, int(tokens)
    return held.weights_bytes, held.max_total_tokens or 0


def memory() -> str:
    """Weights and cache capacity that the engine reported, and ours."""
    lines = [
        "| model | weights measured, GB | predicted | error | KV cache | KV tokens measured | predicted | error |",
        "|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for row in memory_rows():
        held, ours = predicted_memory(row)
        weights, tokens = int(row["weight_bytes"]), int(row["kv_cache_tokens"])
        given = int(row.get("kv_cache_memory_bytes") or 0)
        cells = [
            f"{row['model']} {row['quantization']}",
            f"{weights / 1e9:.3f}",
            f"{held / 1e9:.3f}",
            f"{held / weights - 1:+.2%}",
            ("fp8, " if row["kv_cache_dtype"] == "fp8" else "")
            + (f"{given / 1e9:.2f} GB" if given else f"{row['gpu_memory_utilization']} of memory"),
            f"{tokens:,}",
            f"{ours:,}",
            f"{ours / tokens - 1:+.2%}",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def sections(with_left_out: bool = True) -> dict[str, str]:
    """What stands between the page's markers, by name."""
    tables = {name: table(path) for name, path in SETS.items() if path != PROFILED}
    tables |= {"steps-profiled": profiled(), "memory": memory()}
    return tables | ({"steps-left-out": _lines(left_out())} if with_left_out else {})


if __name__ == "__main__":
    for name, text in sections().items():
        print(f"{name}\n{text}\n")
