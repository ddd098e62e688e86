"""Every combination of training arguments as one table: ``training_sweep("llama-3.1-8b", tensor_parallel_size=[1, 2])``

table = training_sweep("llama-3.1-8b", gpu="h100-sxm,h200", num_gpus=64, global_batch_size="64:512:x2", zero=1)
table.best("tokens_per_second_per_gpu")["global_batch_size"]        table.to_csv("points.csv")        table.to_pandas()
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, product
from pathlib import Path
from typing import Any

import msgspec

from ..base.errors import BadValue, InferometerError, UnknownName
from ..base.files import atomic_writer, output_path
from ..base.ranges import as_list, choices, numbers, switches
from ..base.result import Result
from ..base.units import plural, size
from ..inference.request import Request
from ..network.graph import Model
from ..specs.arguments import Argument, arguments, check_value, signature
from ..specs.catalog import gpu_names
from ..specs.machine_args import TargetArgs
from ..specs.train_args import TrainArgs
from ..training.iteration import iteration_time, model_flops, stage_times
from ..training.passes import Recipe
from ..training.train import build_training
from ..training.training_memory import StageMemory, fullest_stage
from ..training.training_run import training_run
from ..training.training_setup import Training, bind_training, illegal_reason
from .writers import file_format, parquet_library

SCHEMA = "inferometer.training_sweep/1"
MAX_POINTS = 100_000  # each is a whole estimate
WHOLE_TEXTS = ("recompute_modules", "pipeline_model_parallel_layout")  # their values have commas: one value each
LAYOUT_ONLY = (  # arguments that change no operator of a micro-batch
    *("pipeline_parallel_size", "data_parallel_size", "num_gpus", "nodes", "interleave", "global_batch_size", "zero"),
    *("recompute", "recompute_modules", "recompute_method", "recompute_num_layers", "reduce_every_microbatch"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout"),
    *("account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split", "optimizer"),
    *("tokens", "gpu_mtbf", "node_mtbf", "checkpoint_interval", "checkpoint_time", "restart_time", "overlap"),
)
FIGURES = (  # of every point, in the order of columns
    *("feasible", "reason", "gpus", "data_parallel", "micro_batches", "step_seconds", "tokens_per_second"),
    *("tokens_per_second_per_gpu", "model_flops_utilization", "total_bytes", "usable_bytes"),
    *(f"{part}_bytes" for part in StageMemory._fields),
    *(f"{part}_seconds" for part in ("forward", "backward", "recompute", "optimizer", "tp_comm", "cp_comm")),
    *(f"{part}_seconds" for part in ("ep_comm", "pp_comm", "dp_comm", "pp_bubble", "host")),
    *("days", "gpu_hours", "cost"),
)
LOWER_IS_BETTER = ("_seconds", "_bytes", "days", "gpu_hours", "cost")  # how names end
Progress = Callable[[int], None]


@signature(TrainArgs)
def training_sweep(
    model: Any, gpu: Any = "h100-sxm", *, progress: Progress | None = None, **axes: Any
) -> TrainingSweep:
    """Predict every combination of the axes; the keywords are those of `train`, each one value, a list or a range.

    ``training_sweep("llama-3.1-8b", tensor_parallel_size=[1, 2], global_batch_size="64:512:x2", num_gpus=64)``
    """
    table = TrainingSweep({"model": model, "gpu": gpu, **axes})
    for row in table.estimate():
        table.points.append(row)
        if progress is not None:
            progress(len(table.points))
    return table


class TrainingSweep(Result):
    """All points of a grid, those that cannot be used included: ``table.points[0]["step_seconds"]``"""

    def __init__(self, given: Mapping[str, Any]) -> None:
        known = {**arguments(TargetArgs), **arguments(TrainArgs)}
        for name in given:
            if name not in known:
                raise UnknownName("axis", name, [one for one in known if not known[one].secret])
        self.token = given.get("hf_token")
        named = {name: value for name, value in given.items() if value is not None and name != "hf_token"}
        self.axes = {name: axis_values(known[name], value) for name, value in named.items()}
        count = math.prod(map(len, self.axes.values()))
        if count > MAX_POINTS:
            raise BadValue(
                f"the grid has {count:,} points, more than {MAX_POINTS:,}: give fewer values or larger steps"
            )
        self.points: list[dict[str, Any]] = []
        self.warnings: dict[str, None] = {}
        self._costs: dict[tuple[Any, ...], tuple[Model, dict[Any, Any]]] = {}  # what points with a key share

    def __len__(self) -> int:
        return math.prod(map(len, self.axes.values()))

    def __repr__(self) -> str:
        axes = " × ".join(f"{len(values)} {name}" for name, values in self.axes.items() if len(values) > 1)
        return f"<TrainingSweep of {plural(len(self), 'point')}{', ' * bool(axes)}{axes[:120]}>"

    @property
    def feasible(self) -> list[dict[str, Any]]:
        """The points that can be used."""
        return [row for row in self.points if row["feasible"]]

    def best(self, figure: str) -> dict[str, Any]:
        """The point with the best value of a figure: the least of seconds, bytes, days and cost, the most of others."""
        if figure not in FIGURES[2:]:
            raise UnknownName("figure", figure, FIGURES[2:])
        values = [row for row in self.feasible if row[figure] is not None]
        if not values:
            raise BadValue(f"none of the {len(self):,} points is feasible and has {figure}")
        choose = min if figure.endswith(LOWER_IS_BETTER) else max
        return choose(values, key=lambda row: row[figure])

    # -------------------------------------------------------------- estimates

    def estimate(self) -> Iterator[dict[str, Any]]:
        """A row per point, in the order of the axes, the last one fastest."""
        first_error: InferometerError | None = None
        built = False
        for values in product(*self.axes.values()):
            chosen = dict(zip(self.axes, values, strict=True))
            row = dict.fromkeys(FIGURES)
            try:
                row |= self._figures(chosen)
                built = True
            except UnknownName:
                raise  # which no other axis could make right
            except InferometerError as error:
                first_error = first_error or error
                row |= {"feasible": False, "reason": error.text(lambda name: f"--{name.replace('_', '-')}")}
            yield {**chosen, **row}
        if not built and first_error is not None:
            raise BadValue(first_error.sentence, field=first_error.field)

    def _figures(self, chosen: Mapping[str, Any]) -> dict[str, Any]:
        """What `train` says of a point."""
        given = {name: value for name, value in chosen.items() if name not in ("model", "gpu")}
        request, recipe = build_training(chosen["model"], chosen["gpu"], {**given, "hf_token": self.token})
        key = (request.plan.gpus_per_node, *(value for name, value in chosen.items() if name not in LAYOUT_ONLY))
        network, costs = self._costs.setdefault(key, (request.model, {}))  # equal models are one object
        request = request._replace(model=network)
        self.warnings.update(dict.fromkeys(request.warnings))
        training = bind_training(request, recipe)
        illegal = illegal_reason(request, recipe, training.micro_batches)
        if illegal:
            return {"feasible": False, "reason": illegal, "gpus": request.plan.gpus}
        return figures_of(request, recipe, training._replace(costs=costs))

    # -------------------------------------------------------------- tables

    @property
    def columns(self) -> list[str]:
        """The names of columns."""
        return [*self.axes, *FIGURES]

    def csv_text(self) -> str:
        """Every point as a line of CSV; nothing stands where a point has no figure."""
        out = io.StringIO()
        writer = csv.DictWriter(out, self.columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.points)
        return out.getvalue()

    def to_json(self) -> bytes:
        """One document: the axes, every point, and how many of them can be used."""
        axes = {name: list(values) for name, values in self.axes.items()}
        counts = {"points": len(self.points), "feasible": len(self.feasible)}
        table = {"schema": SCHEMA, "axes": axes, "rows": self.points, **counts, "warnings": list(self.warnings)}
        return msgspec.json.encode(table)

    def to_csv(self, path: str | Path) -> Path:
        """Every point as a line of CSV, in a file that is there as a whole or not at all."""
        return self.write(path, "csv")

    def write(self, path: str | Path, format_name: str | None = None) -> Path:
        """The table in the format that the file's name says: .csv .json .jsonl .parquet"""
        chosen = file_format(path, format_name)
        place = output_path(path)
        with atomic_writer(place) as file:
            if chosen == "parquet":
                arrow = parquet_library()
                arrow.parquet.write_table(arrow.Table.from_pylist(self.points), file, compression="zstd")
            elif chosen == "jsonl":
                file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in self.points))
            else:
                file.write(self.csv_text().encode() if chosen == "csv" else self.to_json())
        return place


def figures_of(request: Request, recipe: Recipe, training: Training) -> dict[str, Any]:
    """The figures of a legal point, whether it fits or not."""
    parts, _ = iteration_time(training, stage_times(training))
    held, _ = fullest_stage(training)
    plan, usable = request.plan, request.device.memory * request.plan.gpu_memory_utilization
    rate = recipe.global_batch_size * recipe.length / parts.total
    needed_flops = model_flops(training) * training.micro_batches * training.layout.dp
    run = training_run(recipe, plan, request.device, rate)
    fits = held.total <= usable
    return {
        "feasible": fits,
        "reason": "" if fits else f"needs {size(held.total)} of {size(usable)} usable per GPU",
        "gpus": plan.gpus,
        "data_parallel": training.layout.dp,
        "micro_batches": training.micro_batches,
        "step_seconds": parts.total,
        "tokens_per_second": rate,
        "tokens_per_second_per_gpu": rate / plan.gpus,
        "model_flops_utilization": needed_flops / (parts.total * training.bound_plan.env["mlp_peak_flops"] * plan.gpus),
        "total_bytes": held.total,
        "usable_bytes": usable,
        **{f"{part}_bytes": value for part, value in held._asdict().items()},
        **{f"{part}_seconds": value for part, value in parts._asdict().items()},
        "days": run.days if run is not None else None,
        "gpu_hours": run.gpu_hours if run is not None else None,
        "cost": run.cost if run is not None else None,
    }


def axis_values(argument: Argument, given: Any) -> tuple[Any, ...]:
    """The values of an argument of `train`: ``axis_values(arguments(TrainArgs)["zero"], "0,1")  # (0, 1)``"""
    name, shown = argument.name, f"`{argument.name}`"
    values: tuple[Any, ...]
    if argument.kind == "switch":
        values = switches(shown, given)
    elif argument.kind in ("int", "float") or name == "seq_len":
        values = numbers(shown, given, whole=argument.kind != "float")
    elif name == "efficiency":  # numbers, and texts with a number for each kind of limit
        parts = [[item] if "=" in str(item) else numbers(shown, item, whole=False) for item in as_list(given)]
        values = tuple(chain.from_iterable(parts))
    elif name in WHOLE_TEXTS:
        values = choices(shown, given, lambda text: [text])
    else:
        values = choices(shown if name != "model" else "MODEL", given, gpu_names if name == "gpu" else None)
    for value in values:
        check_value(argument, value)
    return values
