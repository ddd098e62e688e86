"""The grid of a sweep: which values each argument of a request takes, and the cases that they make.

A case is one request for a whole mesh of workloads: batch sizes and lengths are arrays of it (`INNER_AXES`), every
other axis is an outer loop. Rows are numbered case by case, and inside of one by batch size, input, output and prefix
length.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, InferometerError, UnknownName, check_int
from ..base.ranges import as_list, choices, numbers, switches
from ..costs import parallelism
from ..costs.binding import BoundPlan
from ..inference import speculation
from ..inference.analyze import provenance_warnings
from ..inference.request import Request, build_request
from ..network.graph import Model
from ..specs.arguments import arguments
from ..specs.catalog import gpu_names
from ..specs.machine_args import TargetArgs
from ..specs.plan_args import PlanArgs

INNER_AXES = ("batch_size", "input_len", "output_len", "prefix_len")
# texts whose values may have commas
_UNSPLIT = ("kv_tiers", "turns", "speculative_config", "lora_targets", "profile", "calibration")
_SECRET = "hf_token"  # not an axis, and never in a table
_ARGUMENTS = {**arguments(TargetArgs), **arguments(PlanArgs)}
_ORDER = sorted(  # of the loops: rows with the same workload stand together, those that differ in a limit closest
    _ARGUMENTS, key=lambda name: (_ARGUMENTS[name].group != "Machine", _ARGUMENTS[name].group != "Workload")
)
_MAX_CHECKED = 20  # values of an axis that `Grid.check` tries; of a longer axis, the first and the last


class Case(NamedTuple):
    """One request for a mesh of workloads; a refused one has an error and no request."""

    number: int
    arguments: dict[str, Any]  # of the outer axes
    mesh: tuple[np.ndarray, ...]  # the values of INNER_AXES, one dimension each
    reason: str = ""  # why none of its points can be used; empty if some may
    request: Request | None = None
    bound_plan: BoundPlan | None = None
    error: InferometerError | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """How many values each inner axis has."""
        return tuple(len(values) for values in self.mesh)


def kind(name: str) -> str:
    """What an axis takes: ``kind("batch_size")  # 'int'``, or 'float', 'switch', 'text'"""
    return _ARGUMENTS[name].kind


def axis_values(name: str, given: Any) -> tuple[Any, ...]:
    """The values of an argument of the request: ``axis_values("batch_size", "1:8:x2")  # (1, 2, 4, 8)``"""
    known, argument = _ARGUMENTS[name], f"`{name}`"
    if known.kind == "switch":
        return switches(argument, given)
    if known.kind != "text":
        values = numbers(argument, given, whole=known.kind == "int")
        for value in (min(values), max(values)) if name in INNER_AXES else ():
            check_int(name, value, int(known.ge or 0), int(known.le or 0))
        return values
    if name == "efficiency":  # numbers, and texts with a number for each kind of limit
        items = as_list(given) or [given]  # no item is no number, and refused as such
        parts = [[item] if "=" in str(item) else numbers(argument, item, whole=False) for item in items]
        return tuple(chain.from_iterable(parts))
    if name in _UNSPLIT:
        several = isinstance(given, list | tuple) and all(isinstance(v, str | Mapping | None) for v in given)
        return choices(argument, given if several else [given], lambda text: [text])
    if name == "images" and all(isinstance(side, int) for side in as_list(given)):
        given = [tuple(as_list(given))]  # one picture's sides; the request says how many there must be
    # MODEL is an argument of the command, not one of its flags
    return choices(argument if name != "model" else "MODEL", given, gpu_names if name == "gpu" else None)


class Grid:
    """``Grid("llama-3.1-8b", gpu="h200,h100-sxm", batch_size="1:256:x2")``: axes checked, points counted."""

    def __init__(self, model: Any, gpu: Any = "h100-sxm", **given: Any) -> None:
        for name in given:
            if name not in _ARGUMENTS:
                raise UnknownName("axis", name, [known for known in _ARGUMENTS if known != _SECRET])
        self.token = given.pop(_SECRET, None)
        arguments = {"model": model, "gpu": gpu, **given}
        axes = {name: axis_values(name, arguments[name]) for name in _ORDER if arguments.get(name) is not None}
        self.inner = {name: axes.pop(name) for name in INNER_AXES if name in axes}
        self.outer: dict[str, tuple[Any, ...]] = axes
        self.outer_shape = tuple(len(values) for values in axes.values())
        self.num_cases = math.prod(self.outer_shape)
        self.points_per_case = math.prod(len(values) for values in self.inner.values())
        self.warnings: dict[str, None] = {}
        self._models: dict[str, Model] = {}
        self._cases: dict[int, Case] = {}  # those that `check` has built

    @property
    def axes(self) -> dict[str, tuple[Any, ...]]:
        """All axes in the order of rows."""
        return {**self.outer, **self.inner}

    @property
    def points(self) -> int:
        """How many rows the table has."""
        return self.num_cases * self.points_per_case

    def check(self) -> None:
        """Refuse a value that no other axis could make right, and a grid without a single valid request."""
        for place, (name, values) in enumerate(self.outer.items()):
            for index in range(len(values)) if len(values) <= _MAX_CHECKED else (0, len(values) - 1):
                self._check_value(name, values[index], place, index)
        if all(case.request is None for case in chain(self._cases.values(), map(self._case, range(self.num_cases)))):
            error = self._cases[0].error
            assert error is not None
            raise BadValue(error.sentence, field=error.field)

    def _check_value(self, name: str, value: Any, place: int, index: int) -> None:
        """A value is a mistake if it is refused by itself, and in every case that has it."""
        strides = [math.prod(self.outer_shape[at + 1 :]) for at in range(len(self.outer_shape))]
        first = index * strides[place]
        if self._cases.setdefault(first, self._cases.get(first) or self._case(first)).request is not None:
            return
        try:
            build_request(**{"model": self.outer["model"][0], name: value}, hf_token=self.token)
        except InferometerError:
            spots = product(*(range(n) if at != place else (index,) for at, n in enumerate(self.outer_shape)))
            numbers_with_it = (sum(i * step for i, step in zip(spot, strides, strict=True)) for spot in spots)
            if all(self._case(number).request is None for number in numbers_with_it):
                raise

    def __iter__(self) -> Iterator[Case]:
        """The cases in the order of rows."""
        return map(self.case, range(self.num_cases))

    def case(self, number: int) -> Case:
        """One of the cases; one that `check` has built is used, and let go."""
        return self._cases.pop(number) if number in self._cases else self._case(number)

    def _case(self, number: int) -> Case:
        """Build one case. Its number counts the outer axes like an odometer, the last axis fastest."""
        chosen, rest = {}, number
        for name, values in reversed(self.outer.items()):
            rest, at = divmod(rest, len(values))
            chosen[name] = values[at]
        arguments = {name: chosen[name] for name in self.outer}
        try:
            request = build_request(**arguments, **self._largest_workload(), hf_token=self.token)
        except InferometerError as error:
            return Case(number, arguments, self._mesh(None), _reason(error), error=error)
        # equal models are one object, so that what was worked out for the last case serves for this one
        request = request._replace(model=self._models.setdefault(arguments["model"], request.model))
        bound_plan = request.bind()
        self.warnings.update(dict.fromkeys([*request.warnings, *provenance_warnings(request), *bound_plan.notes]))
        reason = parallelism.illegal_reason(request.model, request.plan, request.device) or speculation.draft_reason(
            bound_plan
        )
        return Case(number, arguments, self._mesh(request), reason, request, bound_plan)

    def _largest_workload(self) -> dict[str, Any]:
        """The workload that stands for the mesh in a request: one sequence, the longest lengths, if any a prefix."""
        longest = {name: max(values) for name, values in self.inner.items()}
        if "batch_size" in longest:
            longest["batch_size"] = 1
        if "prefix_len" in longest:
            longest["prefix_len"] = min(1, longest["prefix_len"], longest.get("input_len", 2) - 1)
        return longest

    def _mesh(self, request: Request | None) -> tuple[np.ndarray, ...]:
        """The values of the inner axes: those given, or what the request has by default."""
        work = msgspec.structs.asdict(request.workload) if request and not request.workload.turns else {}
        if request:
            work["batch_size"] = request.workload.batch_size
        return tuple(np.array(self.inner.get(name, (work.get(name, np.nan),)), float) for name in INNER_AXES)


def _reason(error: InferometerError) -> str:
    """A refusal as the text of a table, which names arguments as the command's reports do."""
    return error.text(lambda name: f"--{name.replace('_', '-')}")
