"""Write src/inferometer/specs/keywords.py: the schema of arguments as TypedDicts, for editors and type checkers.

make schema            # after a field of the schema changed; a test compares
"""

from __future__ import annotations

import types
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from inferometer.specs.arguments import Args, Argument, arguments
from inferometer.specs.command_args import (
    ProfileArgs,
    SearchArgs,
    ServedPlanArgs,
    ServingArgs,
    SessionArgs,
    SessionSearchArgs,
    TrafficArgs,
)
from inferometer.specs.plan_args import PlanArgs
from inferometer.specs.train_args import TrainArgs, TrainSearchArgs

TARGET = Path(__file__).parent.parent / "src" / "inferometer" / "specs" / "keywords.py"
VERBS: dict[str, tuple[type[Args], ...]] = {  # what each public function takes as **kwargs
    "PlanKwargs": (PlanArgs,),
    "SimulatedKwargs": (ServedPlanArgs, TrafficArgs, SessionArgs),
    "SimulateKwargs": (ServingArgs,),
    "CapacityKwargs": (ServingArgs, TrafficArgs),
    "SearchKwargs": (SearchArgs, PlanArgs),
    "SessionSearchKwargs": (SearchArgs, SessionSearchArgs, PlanArgs),
    "TrainKwargs": (TrainArgs,),
    "TrainSearchKwargs": (TrainSearchArgs, TrainArgs),
    "ProfileKwargs": (ProfileArgs,),
}
_SERVED = [  # what the command line spells otherwise or lacks
    "pools: Sequence[Mapping[str, Any]] | None",
    "async_scheduling: bool | None",
    "stops: str",
    "fast_forward: bool",
]
PYTHON_ONLY = {
    "SimulateKwargs": [
        "goodput: str | Iterable[str] | Mapping[str, float] | None",
        "max_concurrency: int | None",
        "concurrent_sessions: int | None",
        *_SERVED,
    ],
    "CapacityKwargs": _SERVED,
}
OWN = {  # parameters of the function itself
    "SimulatedKwargs": ("trace", "max_concurrency", "concurrent_sessions"),
    "CapacityKwargs": ("trace", "seed"),
}
HEAD = '''"""The schema of arguments as TypedDicts, for type checkers. Written by tools/keywords.py: do not edit."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypedDict

from .structs import Calibration
'''


def written(annotation: Any) -> str:
    """A type as source text: ``written(int | None)  # 'int | None'``"""
    origin = get_origin(annotation)
    if origin is Annotated:
        return written(get_args(annotation)[0])
    if origin in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(map(written, get_args(annotation))))
    if annotation is type(None):
        return "None"
    if annotation is Any:
        return "Any"
    inner = ", ".join(map(written, get_args(annotation)))
    return f"{annotation.__name__}[{inner}]" if inner else str(annotation.__name__)


def text() -> str:
    """The whole file."""
    parts = [HEAD]
    for name, groups in VERBS.items():
        fields: dict[str, Argument] = {}
        for group in groups:
            fields = {**arguments(group), **fields} if not fields else {**fields, **_missing(arguments(group), fields)}
        fields = {field: argument for field, argument in fields.items() if field not in OWN.get(name, ())}
        lines = [f"    {field}: {_optional(written(argument.annotation))}" for field, argument in fields.items()]
        lines += [f"    {line}" for line in PYTHON_ONLY.get(name, [])]
        parts.append(f'\n\nclass {name}(TypedDict, total=False):\n    """{groups[0].__name__}."""\n\n')
        parts.append("\n".join(lines) + "\n")
    return "".join(parts)


def _missing(more: dict[str, Argument], fields: dict[str, Argument]) -> dict[str, Argument]:
    return {name: argument for name, argument in more.items() if name not in fields}


def _optional(kind: str) -> str:
    """None is the same as not given."""
    return kind if kind.endswith("None") else f"{kind} | None"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
    print(f"wrote {TARGET}")
