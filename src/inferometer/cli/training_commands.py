"""What ``--train`` makes of `search`, `sweep` and `sensitivity`: the same questions about training, with its flags."""

from __future__ import annotations

from typing import Any

import click

from ..specs.arguments import arguments
from ..specs.machine_args import TargetArgs
from ..specs.train_args import TrainArgs, TrainSearchArgs, TrainSensitivityArgs
from .options import (
    GPU,
    MODEL_HELP,
    OUTPUT,
    Command,
    axis_options,
    axis_values,
    model_argument,
    named,
    one_gpu,
    options,
    output_option,
    schema_options,
    train_option,
)
from .output import Form, deliver, emit_result, note, progress_bar, show_page, wrote

_SEARCHED = [*arguments(TrainSearchArgs), "enable_expert_parallel", "pipeline_model_parallel_layout"]
_SEARCH_EXAMPLES = (
    "--train llama-3.1-70b --gpu h100-sxm --num-gpus 1024 --global-batch-size 1024 --seq-len 8192",
    "--train qwen3-30b-a3b --gpu h100-sxm --num-gpus 64 --global-batch-size 256 --seq-len 4096 -ep 8 -tp 1,2",
)


@click.command(name="search", cls=Command, epilog=MODEL_HELP, examples=_SEARCH_EXAMPLES)
@model_argument()
@options(
    [train_option("search")],
    GPU,
    schema_options(TrainArgs, only=["num_gpus"]),
    schema_options(TrainSearchArgs),
    schema_options(TrainArgs, skip=[*_SEARCHED, "num_gpus"]),
)
@output_option("--plot", metavar="DIR", callback=named, help="Write a plot to DIR: memory and speed of layouts.")
@options(OUTPUT)
def training_search(model: str, gpu: str | None, plot: str | None, form: Form, train: bool, **given: Any) -> int:
    """Find the layout that trains fastest on your GPUs, with reasons and Megatron-LM's command."""
    from ..search.training_search import training_search as search

    result = search(model, one_gpu("search --train", gpu), **given)
    if plot is not None:
        from ..views.text.training_search import write_front

        wrote(write_front(result, plot))

    def text() -> Any:
        from ..views.text.training_search import shown

        return shown(result)

    return emit_result(form, result, text)


_SWEEP_EXAMPLES = (
    "--train llama-3.1-8b --num-gpus 64 --global-batch-size 64:512:x2 -tp 1,2,4 --zero 1 --csv",
    "--train llama-3.1-70b --gpu h100-sxm,h200 -tp 8 -pp 4,8 -dp 8 -sp --recompute none,full -o points.parquet",
)
_AXES = (
    "Every flag of train is an axis: 1,2,4 or 64:512:x2 or bf16,fp8; a switch and its --no- form together try both. "
)


@click.command(name="sweep", cls=Command, epilog=_AXES + MODEL_HELP, examples=_SWEEP_EXAMPLES)
@model_argument()
@options(
    [train_option("sweep")],
    axis_options([arguments(TargetArgs)["gpu"], *arguments(TrainArgs).values()]),
    OUTPUT,
)
def training_sweep(model: str, form: Form, train: bool, **flags: Any) -> int:
    """Estimate every combination of training arguments, as a table; infeasible ones are marked.

    The file's name says what -o writes: .csv .json .jsonl .parquet
    """
    from ..sweep.training_sweep import TrainingSweep
    from ..sweep.writers import file_format

    axes = {"model": model, "gpu": arguments(TargetArgs)["gpu"].default, **axis_values(flags)}
    chosen = "json" if form.as_json else "csv" if form.as_csv else None
    for_people = form.as_plain or form.as_markdown
    table_format = file_format(form.output, chosen) if form.output is not None and not for_people else chosen
    table = TrainingSweep(axes)
    with progress_bar("estimating", len(table), "points") as reached:
        for row in table.estimate():
            table.points.append(row)
            reached(len(table.points))
    if table_format is None:
        from ..views.text.sweeps import training_summary

        show_page(training_summary(table), form)
        return 0 if table.feasible else 1
    if form.output is not None:
        wrote([table.write(form.output, chosen)])
    else:
        deliver(table.to_json() if form.as_json else table.csv_text(), None)
    for warning in table.warnings:
        note(f"warning: {warning}")
    if not table.feasible:
        note(f"infeasible: {'; '.join(dict.fromkeys(str(row['reason']) for row in table.points[:3]))}")
    return 0 if table.feasible else 1


_SENSITIVITY_EXAMPLES = (
    "--train llama-3.1-8b --num-gpus 64 -dp 64 --zero 1 --global-batch-size 256 --recompute full",
    "--train llama-3.1-70b --num-gpus 64 -tp 8 -pp 4 -sp --zero 1 --global-batch-size 128 --target mfu:0.5,step:4",
)


@click.command(name="sensitivity", cls=Command, epilog=MODEL_HELP, examples=_SENSITIVITY_EXAMPLES)
@model_argument()
@options(
    [train_option("sensitivity")],
    schema_options(TrainSensitivityArgs),
    GPU,
    schema_options(TrainArgs),
    OUTPUT,
)
def training_sensitivity(model: str, gpu: str | None, form: Form, train: bool, **given: Any) -> int:
    """Show which hardware figures drive a training step: each one is moved 10% up and down."""
    from ..sensitivity.training_sensitivity import training_sensitivity as evaluate

    result = evaluate(model, one_gpu("sensitivity --train", gpu), **given)

    def text() -> Any:
        from ..views.text.sensitivity import training_sensitivity as shown

        return shown(result)

    return emit_result(form, result, text)
