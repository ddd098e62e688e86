"""What ``--train`` makes of `search`: the same question about training, with its flags."""

from __future__ import annotations

from typing import Any

import click

from ..specs.arguments import arguments
from ..specs.train_args import TrainArgs, TrainSearchArgs
from .options import (
    GPU,
    MODEL_HELP,
    OUTPUT,
    Command,
    model_argument,
    named,
    one_gpu,
    options,
    output_option,
    schema_options,
    train_option,
)
from .output import Form, emit, table_csv, wrote

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

    emit(
        form,
        json=result.to_json,
        csv=lambda: table_csv(result.rows()),
        text=text,
        warnings=result.warnings,
        infeasible=None if result.feasible else result.reason,
    )
    return 0 if result.feasible else 1
