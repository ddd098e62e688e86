"""Training against published runs since 2024, as Markdown: Megatron-Bridge, SimuMax, Llama-3 405B.

python benchmarks/training_runs.py            # the tables
python benchmarks/training_runs.py --rows     # every run
"""

from __future__ import annotations

import csv
import functools
import json
import statistics
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from inferometer.inference.request import Request
from inferometer.specs import catalog
from inferometer.training.iteration import iteration_time, model_flops, stage_times
from inferometer.training.passes import Recipe
from inferometer.training.train import build_training, train
from inferometer.training.training_setup import bind_training

DATA = Path(__file__).resolve().parent / "data"
GIB = 2.0**30
WHOLE = ("num_gpus", "global_batch_size", "micro_batch_size", "seq_len", "tp", "pp", "cp", "interleave", "ep", "fsdp")
MATCHED = ("model", "gpu", "precision", "task", "release", "pp", "interleave")  # what a rule of recipes may name
LABELS = {"h100-sxm": "H100", "gb200": "GB200", "gb300": "GB300", "b200": "B200", "b300": "B300"}


class Run(NamedTuple):
    """A published run: what it was, its seconds of a step, and how to ask for it; or why it is not asked for."""

    name: str
    model: str
    gpu: str
    precision: str
    seconds: float
    num_gpus: int
    arguments: dict[str, Any]
    left_out: str = ""
    gib: float = 0.0  # allocated, where it was published
    theirs: float = 0.0  # seconds that the publisher's own tool predicts
    theirs_gib: float = 0.0


class Answer(NamedTuple):
    """A run beside our prediction."""

    run: Run
    seconds: float
    roofline: float

    @property
    def error(self) -> float:
        """Relative, positive where ours is slower."""
        return self.seconds / self.run.seconds - 1


# ------------------------------------------------------------------ published runs


def _table(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def bridge_runs() -> list[Run]:
    """Megatron-Bridge's runs, with the flags of its recipes."""
    rules = tomllib.loads((DATA / "megatron_bridge_recipes.toml").read_text(encoding="utf-8"))["rules"]
    return [_bridge_run(row, rules) for row in _table("megatron_bridge_training.csv")]


def _matches(row: dict[str, str], rule: dict[str, Any]) -> bool:
    for name in MATCHED:
        allowed = rule.get(name, row[name])
        if row[name] not in map(str, allowed if isinstance(allowed, list) else [allowed]):
            return False
    return bool(rule.get("since", "") <= row["release"] <= rule.get("until", "99"))


def _bridge_run(row: dict[str, str], rules: list[dict[str, Any]]) -> Run:
    number = {name: int(row[name]) for name in WHOLE}
    arguments: dict[str, Any] = {
        "num_gpus": number["num_gpus"],
        "global_batch_size": number["global_batch_size"],
        "micro_batch_size": number["micro_batch_size"],
        "seq_len": number["seq_len"],
        "tensor_parallel_size": number["tp"],
        "pipeline_parallel_size": number["pp"],
        "context_parallel_size": number["cp"],
        "interleave": number["interleave"],
        "precision": row["precision"],
        "zero": 3 if number["fsdp"] else 1,
        "grad_dtype": "bf16",
        "cross_entropy_loss_fusion": True,
        "sequence_parallel": number["tp"] > 1,
        "fp8_param_gather": row["precision"] not in ("", "bf16"),
    }
    if number["ep"] > 1:
        arguments["expert_model_parallel_size"] = number["ep"]
    left_out = row["left_out"]
    for rule in rules:
        if _matches(row, rule):
            arguments |= rule.get("flags", {})
            left_out = left_out or rule.get("left_out", "")
    if int(row["without_mtp"]):
        arguments.pop("mtp_num_layers", None)
    if "pipeline_model_parallel_layout" in arguments:
        arguments["interleave"] = 1  # the layout says it
    arguments = {name: value for name, value in arguments.items() if value != ""}
    tokens = number["global_batch_size"] * number["seq_len"] / number["num_gpus"]
    seconds = tokens / float(row["tokens_per_gpu_second"])
    name = f"{row['number']} {row['release']} {row['task']}"
    return Run(name, row["model"], row["gpu"], row["precision"], seconds, number["num_gpus"], arguments, left_out)


def simumax_runs() -> list[Run]:
    """SimuMax's runs of Megatron on eight B200: models of few layers, collectives that nothing hides."""
    runs = []
    for row in _table("simumax_training.csv"):
        tp, dp, cp, ep = (int(row[name]) for name in ("tp", "dp", "cp", "ep"))
        arguments: dict[str, Any] = {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": int(row["pp"]),
            "data_parallel_size": dp,
            "context_parallel_size": cp,
            "cp_comm_type": "a2a",
            "global_batch_size": int(row["micro_batches"]) * dp,
            "seq_len": int(row["seq_len"]),
            "zero": 1,
            "sequence_parallel": tp > 1,
            "cross_entropy_loss_fusion": True,
            "overlap": 0.0,
            **({"expert_model_parallel_size": ep} if ep > 1 else {}),
        }
        label = f"{row['model']}, {row['num_hidden_layers']} layers, tp {tp}, pp {row['pp']}, cp {cp}, ep {ep}"
        runs.append(
            Run(
                f"{label}, {row['micro_batches']} micro-batches of {row['seq_len']}",
                short_model(row["model"], int(row["num_hidden_layers"])),
                "b200",
                "bf16",
                float(row["step_ms"]) / 1e3,
                8,
                arguments,
                gib=float(row["allocated_gib"]),
                theirs=float(row["simumax_ms"]) / 1e3,
                theirs_gib=float(row["simumax_gib"]),
            )
        )
    return runs


@functools.cache
def short_model(name: str, layers: int) -> str:
    """A config.json of a model with so many layers, of which one is dense in mixtures, without further modules."""
    file = catalog.DATA / "models" / f"{name}.toml"
    config = tomllib.loads(file.read_text(encoding="utf-8"))["config"]
    config |= {"num_hidden_layers": layers}
    if "first_k_dense_replace" in config:
        config["first_k_dense_replace"] = 1
    for left in ("num_nextn_predict_layers", "quantization_config"):
        config.pop(left, None)
    path = Path(tempfile.mkdtemp(prefix=f"{name}-{layers}-")) / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    return str(path)


def llama_runs() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Llama-3 405B: what its paper says of each run, and the arguments."""
    table = tomllib.loads((DATA / "llama_405b_training.toml").read_text(encoding="utf-8"))
    return [(run, table["common"] | run["arguments"]) for run in table["runs"]]


# ------------------------------------------------------------------ ours


def step_seconds(request: Request, recipe: Recipe) -> float:
    """A step."""
    training = bind_training(request, recipe)
    return iteration_time(training, stage_times(training))[0].total


def answers(runs: Iterable[Run]) -> list[Answer]:
    """Our predictions; equal questions are asked once."""
    known: dict[str, tuple[float, float]] = {}
    rows = []
    for run in runs:
        if run.left_out:
            continue
        key = json.dumps([run.model, run.gpu, run.arguments], sort_keys=True)
        if key not in known:
            real = step_seconds(*build_training(run.model, run.gpu, run.arguments))
            ideal = step_seconds(*build_training(run.model, run.gpu, {**run.arguments, "engine": "roofline"}))
            known[key] = (real, ideal)
        rows.append(Answer(run, *known[key]))
    return rows


@functools.cache
def bridge_answers() -> list[Answer]:
    """Of Megatron-Bridge's runs."""
    return answers(bridge_runs())


@functools.cache
def simumax_answers() -> list[tuple[Answer, float]]:
    """Of SimuMax's runs, each with the relative error of its memory."""
    rows = []
    for row in answers(simumax_runs()):
        held = train(row.run.model, gpu=row.run.gpu, **row.run.arguments).memory
        rows.append((row, (held.total_bytes - held.overhead_bytes) / GIB / row.run.gib - 1))
    return rows


def mean_error(errors: Iterable[float]) -> float:
    """Of their sizes."""
    return statistics.fmean(map(abs, errors))


# ------------------------------------------------------------------ tables


def left_out_errors() -> dict[str, dict[str, str]]:
    """Errors of models and GPUs when nothing was fitted to their rows, as training_fit.py wrote them."""
    return {row["left_out"]: row for row in _table("training_left_out.csv")}


def _by(
    rows: list[Answer], title: str, key: Callable[[Run], str], apart: dict[str, dict[str, str]], total: str = ""
) -> list[str]:
    """A table of the errors of groups of runs, and of all of them where it is asked for by its name in ``apart``."""
    groups = {group: [row for row in rows if key(row.run) == group] for group in sorted({key(r.run) for r in rows})}
    lines = [f"| {title} | runs | error | bias | worst | left out | roofline |", "|---|---:|---:|---:|---:|---:|---:|"]
    for group, part in (groups | ({total: rows} if total else {})).items():
        errors, ideal = [row.error for row in part], [row.roofline / row.run.seconds - 1 for row in part]
        label = "**all**" if group == total else LABELS.get(group, group)
        alone = f"{float(apart[LABELS.get(group, group)]['error']):.1%}" if LABELS.get(group, group) in apart else "-"
        lines.append(
            f"| {label} | {len(part)} | {mean_error(errors):.1%} | {statistics.fmean(errors):+.1%} | "
            f"{max(errors, key=abs):+.1%} | {alone} | {mean_error(ideal):.0%} |"
        )
    return [*lines, ""]


def markdown() -> str:
    """The section of docs/accuracy/training.md."""
    runs = bridge_runs()
    rows, apart = bridge_answers(), left_out_errors()
    numbers = {run.name.split()[0] for run in runs}
    answered = {row.run.name.split()[0] for row in rows}
    total = mean_error(row.error for row in rows)
    ideal = mean_error(row.roofline / row.run.seconds - 1 for row in rows)
    lines = [
        f"Megatron-Bridge: {len(answered)} of {len(numbers)} rows are answered ({len(rows)} figures). Mean error of "
        f"seconds {total:.1%} (roofline {ideal:.0%}); with each model left out of the fit in turn "
        f"{float(apart['all models']['error']):.1%}, with each GPU left out {float(apart['all gpus']['error']):.1%}.",
        "",
    ]
    lines += _by(rows, "model", lambda run: run.model, apart, "all models")
    lines += _by(rows, "GPU", lambda run: run.gpu, apart, "all gpus")
    lines += _by(rows, "precision", lambda run: run.precision, apart)
    lines += ["Rows that are not answered:", "", "| row | model | GPU | why |", "|---|---|---|---|"]
    lines += [f"| {run.name} | {run.model} | {LABELS[run.gpu]} | {run.left_out} |" for run in runs if run.left_out]
    return "\n".join([*lines, "", *_simumax(), "", *_llama()]) + "\n"


def _simumax() -> list[str]:
    rows, memory = zip(*simumax_answers(), strict=True)
    seconds = mean_error(row.run.theirs / row.run.seconds - 1 for row in rows)
    theirs_memory = mean_error(row.run.theirs_gib / row.run.gib - 1 for row in rows)
    ideal = mean_error(row.roofline / row.run.seconds - 1 for row in rows)
    lines = [
        f"SimuMax's {len(rows)} runs on eight B200, bf16. Mean error of seconds: ours "
        f"{mean_error(row.error for row in rows):.1%}, SimuMax {seconds:.1%} (with efficiencies that were measured on "
        f"that machine), roofline {ideal:.0%}. Of memory: ours {mean_error(memory):.1%}, SimuMax {theirs_memory:.1%}.",
        "",
        "| run | published, s | ours | SimuMax | roofline | GiB | ours | SimuMax |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row, error in zip(rows, memory, strict=True):
        run = row.run
        theirs, held = run.theirs / run.seconds - 1, run.theirs_gib / run.gib - 1
        lines.append(
            f"| {run.name} | {run.seconds:.3f} | {row.error:+.1%} | {theirs:+.1%} | "
            f"{row.roofline / run.seconds - 1:+.0%} | {run.gib:.2f} | {error:+.1%} | {held:+.1%} |"
        )
    return lines


def llama_utilization(arguments: dict[str, Any]) -> float:
    """MFU of a run of Llama-3 405B."""
    training = bind_training(*build_training("llama-3.1-405b", "h100-sxm", arguments))
    seconds = iteration_time(training, stage_times(training))[0].total
    done = model_flops(training) * training.micro_batches * training.layout.dp
    return done / (seconds * training.bound_plan.env["mlp_peak_flops"] * training.bound_plan.plan.gpus)


def _llama() -> list[str]:
    lines = [
        "Llama-3 405B on H100 (arXiv 2407.21783, table 4), tp 8, pp 16, eight virtual stages, MFU:",
        "",
        "| GPUs | tokens a sequence | cp | dp | sequences a replica | published | predicted |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for run, arguments in llama_runs():
        lines.append(
            f"| {run['gpus']:,} | {arguments['seq_len']:,} | {arguments.get('context_parallel_size', 1)} | "
            f"{arguments['data_parallel_size']} | {run['sequences']} | {run['mfu']:.0%} | "
            f"{llama_utilization(arguments):.1%} |"
        )
    return lines


if __name__ == "__main__":
    if "--rows" in sys.argv:
        for row in answers([*bridge_runs(), *simumax_runs()]):
            print(f"{row.run.name:<24} {row.run.model:<28} {row.run.gpu:<9} {row.run.precision:<6} {row.error:+.1%}")
    else:
        print(markdown(), end="")
