"""Training steps and memory against Megatron-LM's published ones (arXiv 2205.05198), as Markdown.

python benchmarks/training.py
"""

from __future__ import annotations

import json
import statistics
import tempfile
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from inferometer.costs.kernels import assumed
from inferometer.inference.request import build_request
from inferometer.specs import catalog
from inferometer.training.iteration import iteration_time, stage_times
from inferometer.training.passes import Recipe
from inferometer.training.training_kernels import wave_quantization
from inferometer.training.training_memory import rank_memory
from inferometer.training.training_setup import Training, bind_training

FILE = Path(__file__).resolve().parent / "data" / "megatron_training.toml"
GIB = 2.0**30
POLICIES = {
    "none": (False, "none"),
    "seq": (True, "none"),
    "selective": (False, "selective"),
    "seq_selective": (True, "selective"),
    "full": (False, "full"),
}
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


def published() -> list[dict[str, Any]]:
    """The published runs with their figures."""
    runs: list[dict[str, Any]] = tomllib.loads(FILE.read_text(encoding="utf-8"))["runs"]
    return runs


def bound_plan(run: dict[str, Any], policy: str) -> Training:
    """One of its runs under a policy: GPT blocks with dropout, fp16, attention as of 2022."""
    config = {
        "model_type": "gpt2",
        "vocab_size": run["vocab_size"],
        "n_embd": run["hidden_size"],
        "n_layer": run["num_layers"],
        "n_head": run["num_attention_heads"],
        "n_positions": run["seq_len"],
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
            tensor_parallel_size=run["tensor_parallel_size"],
            pipeline_parallel_size=run["pipeline_parallel_size"],
            sequence_parallel=sequence_parallel,
            dtype="fp16",
            quantization="fp16",
            kv_cache_dtype="fp16",
            attention="eager",
            fusion=False,
        )
    recipe = Recipe(
        global_batch_size=run["global_batch_size"],
        micro_batch_size=run["micro_batch_size"],
        seq_len=run["seq_len"],
        recompute=recompute,
        precision="fp16",
        interleave=run["interleave"],
        dropout=True,  # type: ignore[arg-type]
    )
    return bind_training(request, recipe)


def seconds(training: Training) -> float:
    """An iteration."""
    return iteration_time(training, stage_times(training))[0].total


def iterations(runs: list[dict[str, Any]]) -> list[Row]:
    """All published iterations beside ours."""
    rows = []
    for run in runs:
        layout = f"{run['num_gpus']} GPUs: tp {run['tensor_parallel_size']}, pp {run['pipeline_parallel_size']}"
        layout += f" × {run['interleave']}" if run["interleave"] > 1 else ""
        for policy, took in run["seconds"].items():
            training = bound_plan(run, policy)
            rows.append(Row(run["model"], policy, layout, took, training, seconds(training)))
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
    runs = published()
    rows = iterations(runs)
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
    lines += ["", f"{fitted} With both constants fitted to the other three models only: {unseen}", ""]
    lines += [*_memory(runs), "", *_percent(runs)]
    return "\n".join(lines) + "\n"


def _memory(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "GiB per GPU (of the first pipeline stage, which keeps most activations):",
        "",
        "| model | what | published | predicted | error |",
        "|---|---|---:|---:|---:|",
    ]
    for run in runs:
        activations, stages = run["activation_gib"], run["pipeline_parallel_size"]
        none, both = bound_plan(run, "none"), bound_plan(run, "seq_selective")
        first, inner = rank_memory(none, 0), rank_memory(none, min(1, stages - 1))
        figures = {
            "activations, no recompute": (activations["none"], first.activations),
            "activations, selective, sp": (activations["seq_selective"], rank_memory(both, 0).activations),
            "weights, gradients, optimizer: layers" if stages > 1 else "weights, gradients, optimizer": (
                run["state_gib"],
                _state(inner),
            ),
        }
        if stages > 1:
            figures["the same with the embedding"] = (run["state_gib"], _state(first))
        lines += [
            f"| {run['model']} | {what} | {theirs:.2f} | {ours / GIB:.2f} | {ours / GIB / theirs - 1:+.1%} |"
            for what, (theirs, ours) in figures.items()
        ]
    return lines


def _state(held: Any) -> float:
    return float(held.weights + held.gradients + held.optimizer)


def _percent(runs: list[dict[str, Any]]) -> list[str]:
    lines = [
        "Activations in percent of those without recomputation and sequence parallelism:",
        "",
        "| model | recompute | published | predicted |",
        "|---|---|---:|---:|",
    ]
    for run in runs:
        base = rank_memory(bound_plan(run, "none"), 0).activations
        for policy, theirs in run["activation_percent"].items():
            ours = rank_memory(bound_plan(run, policy), 0).activations / base * 100
            lines.append(f"| {run['model']} | {LABELS[policy]} | {theirs:.2f} | {ours:.2f} |")
    return lines


if __name__ == "__main__":
    print(markdown(), end="")
