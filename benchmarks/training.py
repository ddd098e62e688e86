"""Training steps and memory against Megatron-LM's published ones (arXiv 2205.05198), as Markdown.

    INFEROMETER_SHARED=../shared python benchmarks/training.py

The published figures are not part of this repository; they are looked for in the folder that INFEROMETER_SHARED names
(default: ``shared`` beside the repository).
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferometer.costs.kernels import assumed
from inferometer.inference.request import build_request
from inferometer.specs import catalog
from inferometer.training.iteration import iteration_time, stage_times
from inferometer.training.passes import Recipe
from inferometer.training.training_memory import stage_memory
from inferometer.training.training_setup import Training, bind_training, wave_quantization

SHARED = Path(os.environ.get("INFEROMETER_SHARED", Path(__file__).resolve().parents[2] / "shared"))
FILE = SHARED / "reference" / "megatron_training.json"
GIB = 2.0**30
POLICIES = {
    "none": (False, "none"),
    "seq": (True, "none"),
    "selective": (False, "selective"),
    "seq_selective": (True, "selective"),
    "full": (False, "full"),
}
ROWS = {"full_recompute": "full", "sequence_parallel_selective_recompute": "seq_selective"}
LABELS = {"none": "none", "seq": "none, sp", "selective": "selective", "seq_selective": "selective, sp", "full": "full"}
PASSES = ("norm", "elementwise", "loss", "optimizer", "prefill_attention", "attention_backward")  # share one `hbm`


class Row(NamedTuple):
    """A published iteration and ours."""

    model: str
    policy: str
    layout: str
    published: float
    training: Training
    predicted: float

    @property
    def error(self) -> float:
        """Relative, positive where ours is slower."""
        return self.predicted / self.published - 1


def published() -> dict[str, Any]:
    """The file of published figures."""
    data: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return data


def bound_plan(data: dict[str, Any], run: dict[str, Any], policy: str) -> Training:
    """One of its runs under a policy: GPT blocks with dropout, fp16, attention as of 2022."""
    sizes = data["models"][run["model"]]
    config = {
        "model_type": "gpt2",
        "vocab_size": sizes["vocab"],
        "n_embd": sizes["hidden"],
        "n_layer": sizes["layers"],
        "n_head": sizes["heads"],
        "n_positions": sizes["seq"],
        "torch_dtype": "float16",
    }
    sequence_parallel, recompute = POLICIES[policy]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        request = build_request(
            str(path),
            "a100-sxm-80gb",
            engine="megatron",
            input_len=1,
            output_len=1,
            tensor_parallel_size=run["tp"],
            pipeline_parallel_size=run["pp"],
            sequence_parallel=sequence_parallel,
            dtype="fp16",
            quantization="fp16",
            kv_cache_dtype="fp16",
            attention="eager",
            fusion=False,
        )
    recipe = Recipe(
        global_batch_size=run["global_batch"],
        micro_batch_size=run["micro_batch"],
        seq_len=sizes["seq"],
        recompute=recompute,
        precision="fp16",
        interleave=run["interleave"],
        dropout=True,  # type: ignore[arg-type]
    )
    return bind_training(request, recipe)


def seconds(training: Training) -> float:
    """An iteration."""
    return iteration_time(training, stage_times(training))[0].total


def iterations(data: dict[str, Any]) -> list[Row]:
    """All published iterations beside ours."""
    rows = []
    for run in data["runs"]:
        layout = f"{run['gpus']} GPUs: tp {run['tp']}, pp {run['pp']}"
        layout += f" × {run['interleave']}" if run["interleave"] > 1 else ""
        for key, policy in ROWS.items():
            training = bound_plan(data, run, policy)
            rows.append(Row(run["model"], policy, layout, run["iteration_s"][key], training, seconds(training)))
    return rows


def refitted(training: Training, flops: float, hbm: float) -> float:
    """The iteration with other figures of the two kinds that were fitted: products, and passes through memory."""
    engine = catalog.engine("megatron")
    kernels = dict(engine.kernels)
    kernels["linear"] = msgspec.structs.replace(kernels["linear"], flops=flops)
    kernels |= {kind: msgspec.structs.replace(kernels[kind], hbm=hbm) for kind in PASSES}
    engine = msgspec.structs.replace(engine, kernels=kernels)
    waves = wave_quantization(engine, training.bound_plan.device)
    sources = (*training.bound_plan.sources[:-2], waves, assumed(engine))
    stages = tuple(stage._replace(engine=engine, sources=sources) for stage in training.stages)
    return seconds(
        training._replace(bound_plan=training.bound_plan._replace(engine=engine, sources=sources), stages=stages)
    )


def left_out(rows: list[Row]) -> dict[str, list[float]]:
    """Errors of each model's rows when the two figures are fitted to the other models' rows only."""
    grid = [(flops / 100, hbm / 100) for flops in range(70, 87, 2) for hbm in range(60, 86, 5)]
    tried = [[refitted(row.training, *point) / row.published - 1 for row in rows] for point in grid]
    errors_by_model: dict[str, list[float]] = {}
    for model in dict.fromkeys(row.model for row in rows):
        indices = [i for i, row in enumerate(rows) if row.model == model]
        best = min(tried, key=lambda errors: sum(e * e for i, e in enumerate(errors) if i not in indices))
        errors_by_model[model] = [best[i] for i in indices]
    return errors_by_model


def markdown() -> str:
    """The section of docs/accuracy/training.md."""
    data = published()
    rows = iterations(data)
    lines = [
        "Seconds of an iteration:",
        "",
        "| model | layout | recompute | published | predicted | error |",
        "|---|---|---|---:|---:|---:|",
    ]
    lines += [
        f"| {r.model} | {r.layout} | {LABELS[r.policy]} | {r.published:.2f} | {r.predicted:.2f} | {r.error:+.1%} |"
        for r in rows
    ]
    errors, apart = [abs(r.error) for r in rows], [abs(e) for es in left_out(rows).values() for e in es]
    fitted = f"Mean error {statistics.fmean(errors):.1%}, worst {max(errors):.1%}."
    unseen = f"mean {statistics.fmean(apart):.1%}, worst {max(apart):.1%}."
    lines += ["", f"{fitted} With both fitted figures fitted to the other three models only: {unseen}", ""]
    lines += [*_memory(data), "", *_percent(data)]
    return "\n".join(lines) + "\n"


def _memory(data: dict[str, Any]) -> list[str]:
    lines = [
        "GiB per GPU (of the first pipeline stage, which keeps most activations):",
        "",
        "| model | what | published | predicted | error |",
        "|---|---|---:|---:|---:|",
    ]
    for run in data["runs"]:
        want = data["memory_gib"][run["model"]]
        none, both = bound_plan(data, run, "none"), bound_plan(data, run, "seq_selective")
        first, inner = stage_memory(none, 0), stage_memory(none, min(1, run["pp"] - 1))
        figures = {
            "activations, no recompute": (want["activations_none"], first.activations),
            "activations, selective, sp": (want["activations_seq_selective"], stage_memory(both, 0).activations),
            "weights, gradients, optimizer: layers" if run["pp"] > 1 else "weights, gradients, optimizer": (
                want["parameters_optimizer"],
                _state(inner),
            ),
        }
        if run["pp"] > 1:
            figures["the same with the embedding"] = (want["parameters_optimizer"], _state(first))
        lines += [
            f"| {run['model']} | {what} | {theirs:.2f} | {ours / GIB:.2f} | {ours / GIB / theirs - 1:+.1%} |"
            for what, (theirs, ours) in figures.items()
        ]
    return lines


def _state(held: Any) -> float:
    return float(held.weights + held.gradients + held.optimizer)


def _percent(data: dict[str, Any]) -> list[str]:
    lines = [
        "Activations in percent of those without recomputation and sequence parallelism:",
        "",
        "| model | recompute | published | predicted |",
        "|---|---|---:|---:|",
    ]
    for run in data["runs"]:
        base = stage_memory(bound_plan(data, run, "none"), 0).activations
        for policy, theirs in data["activation_percent"].get(run["model"], {}).items():
            ours = stage_memory(bound_plan(data, run, policy), 0).activations / base * 100
            lines.append(f"| {run['model']} | {LABELS[policy]} | {theirs:.2f} | {ours:.2f} |")
    return lines


def main() -> None:
    if FILE.exists():
        print(markdown(), end="")
    else:
        print(f"No training is compared: {FILE} is not there; INFEROMETER_SHARED names another folder")


if __name__ == "__main__":
    main()
