"""The grid of a sweep: which values each word of a request takes, and the cases that they make.

A case is one request for a whole mesh of workloads: batch sizes and lengths are arrays of it, every other axis is an
outer loop. Rows are numbered case by case, and inside of one by batch size, input, output and prefix length.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from itertools import chain, product
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..base.errors import BadValue, InferometerError, UnknownName, check_int
from ..base.ranges import items, numbers, switches, words
from ..costs import parallelism
from ..costs.binding import BoundPlan
from ..inference import latency
from ..inference.analyze import provenance_warnings
from ..inference.request import Request, build_request
from ..inference.workload import TOKENS
from ..network.graph import Model
from ..specs.catalog import split_gpus

INNER = ("batch_size", "input_len", "output_len", "prefix_len")
_LIMITS = {"batch_size": (1, 10**7), "input_len": (1, TOKENS), "output_len": (1, TOKENS), "prefix_len": (0, TOKENS)}
_UNCUT = ("turns", "speculative_config", "lora_targets", "profile", "calibration")  # their values may have commas
_SECRET = "hf_token"  # not an axis, and never in a table
_WORDS = inspect.signature(build_request).parameters
_LOOKED_AT = 20  # values of an axis; of more, the first and the last stand for all


class Case(NamedTuple):
    """One request for a mesh of workloads; refused ones have a reason and no request."""

    number: int
    words: dict[str, Any]
    mesh: tuple[np.ndarray, ...]  # the values of INNER
    reason: str = ""
    request: Request | None = None
    bound_plan: BoundPlan | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Values of each inner axis."""
        return tuple(len(values) for values in self.mesh)


def kind(name: str) -> str:
    """What an axis takes: ``kind("batch_size")  # 'whole'``, or 'real', 'switch', 'word'"""
    said = str(_WORDS[name].annotation)
    if name == "input_len" or said.startswith("int"):
        return "whole"
    return "switch" if "bool" in said else "word" if "str" in said else "real"


def flag(name: str) -> str:
    """``flag("batch_size")  # '--batch-size'``"""
    return f"--{name.replace('_', '-')}" if name != "model" else "MODEL"


def axis(name: str, given: Any) -> tuple[Any, ...]:
    """The values of a word of the request: ``axis("batch_size", "1:8:x2")  # (1, 2, 4, 8)``"""
    takes = kind(name)
    if takes == "switch":
        return switches(flag(name), given)
    if takes != "word":
        values = numbers(flag(name), given, whole=takes == "whole")
        for value in (min(values), max(values)) if name in _LIMITS else ():
            check_int(flag(name), value, *_LIMITS[name])
        return values
    if name == "efficiency":  # numbers, and texts with a number for each kind of limit
        parts = [[item] if "=" in str(item) else numbers(flag(name), item, whole=False) for item in items(given)]
        return tuple(chain.from_iterable(parts))
    if name in _UNCUT:
        several = isinstance(given, list | tuple) and all(isinstance(v, str | Mapping | None) for v in given)
        return words(flag(name), given if several else [given], lambda text: [text])
    if name == "images" and all(isinstance(side, int) for side in items(given)):
        given = [tuple(given)]
    return words(flag(name), given, split_gpus if name == "gpu" else None)


class Grid:
    """``Grid("llama-3.1-8b", gpu="h200,h100-sxm", batch_size="1:256:x2")``: checked, counted and ready to be priced."""

    def __init__(self, model: Any, gpu: Any = "h100-sxm", **given: Any) -> None:
        for name in given:
            if name not in _WORDS:
                raise UnknownName("axis", name, [word for word in _WORDS if word != _SECRET])
        self.token = given.pop(_SECRET, None)
        request = {"model": model, "gpu": gpu, **given}
        axes = {name: axis(name, request[name]) for name in _WORDS if request.get(name) is not None}
        self.inner = {name: axes.pop(name) for name in INNER if name in axes}
        self.axes: dict[str, tuple[Any, ...]] = axes  # those of the outer loop
        self.lengths = tuple(len(values) for values in axes.values())
        self.cases = math.prod(self.lengths)
        self.each = math.prod(len(values) for values in self.inner.values())
        self.warnings: dict[str, None] = {}
        self._models: dict[str, Model] = {}
        self._seen: dict[int, Case] = {}

    @property
    def every(self) -> dict[str, tuple[Any, ...]]:
        """All axes in the order of rows."""
        return {**self.axes, **self.inner}

    @property
    def points(self) -> int:
        """Rows of the table."""
        return self.cases * self.each

    def check(self) -> None:
        """Refuse a value that nothing could make right, and a grid of which no case can be asked for."""
        for place, (name, values) in enumerate(self.axes.items()):
            for index in range(len(values)) if len(values) <= _LOOKED_AT else (0, len(values) - 1):
                self._check_value(name, values[index], place, index)
        if all(case.request is None for case in chain(self._seen.values(), map(self._made, range(self.cases)))):
            raise BadValue(self._seen[0].reason)

    def _check_value(self, name: str, value: Any, place: int, index: int) -> None:
        """A value is a mistake if it is refused by itself, and in every case that has it."""
        strides = [math.prod(self.lengths[at + 1 :]) for at in range(len(self.lengths))]
        first = index * strides[place]
        if self._seen.setdefault(first, self._seen.get(first) or self._made(first)).request is not None:
            return
        try:
            build_request(**{"model": self.axes["model"][0], name: value}, hf_token=self.token)
        except InferometerError:
            spots = product(*(range(n) if at != place else (index,) for at, n in enumerate(self.lengths)))
            around = (sum(i * step for i, step in zip(spot, strides, strict=True)) for spot in spots)
            if all(self._made(number).request is None for number in around):
                raise

    def __iter__(self) -> Iterator[Case]:
        """The cases in the order of rows; those that were made to be checked are used, and let go."""
        for number in range(self.cases):
            yield self._seen.pop(number) if number in self._seen else self._made(number)

    def _made(self, number: int) -> Case:
        chosen, rest = {}, number
        for name, values in reversed(self.axes.items()):
            rest, at = divmod(rest, len(values))
            chosen[name] = values[at]
        words = {name: chosen[name] for name in self.axes}
        try:
            request = build_request(**words, **self._workload(), hf_token=self.token)
        except InferometerError as error:
            return Case(number, words, self._mesh(None), str(error))
        # equal models are one model, so that what was worked out for the last case serves for this one
        request = request._replace(model=self._models.setdefault(words["model"], request.model))
        bound_plan = request.bind()
        self.warnings.update(dict.fromkeys([*request.warnings, *provenance_warnings(request), *bound_plan.notes]))
        reason = parallelism.reason(request.model, request.plan, request.device) or latency.draft_reason(bound_plan)
        return Case(number, words, self._mesh(request), reason, request, bound_plan)

    def _workload(self) -> dict[str, Any]:
        """The words of a workload that stand for the whole mesh: one sequence, the longest lengths, if any a prefix."""
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
        return tuple(np.array(self.inner.get(name, (work.get(name, np.nan),)), float) for name in INNER)
