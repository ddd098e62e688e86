"""docs/reference/serving.md: schedulers, queue policies, routers, autoscaling policies and their options, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from inferometer.serving.autoscaling import POLICIES, AutoscalingOptions, autoscaling_constants
from inferometer.serving.router import ROUTERS
from inferometer.serving.schedulers import SCHEDULERS
from inferometer.serving.synthetic import DISTRIBUTIONS
from inferometer.specs import catalog

from .catalogue import struct_table
from .markdown import code, table
from .struct_fields import fields

HEAD = """# Schedulers, routers and autoscalers

What `inferometer simulate` and `search` can be told to run. Each is one registered function;
[CONTRIBUTING](../../CONTRIBUTING.md#add-a-scheduler-or-a-router) shows how to add one.

"""


def page() -> str:
    """The whole page."""
    engines: dict[str, list[str]] = {}
    for name in catalog.names("engines"):
        engines.setdefault(catalog.engine(name).scheduler, []).append(code(name))
    rows = [[code(name), _doc(one.schedule), ", ".join(engines.get(name, []))] for name, one in SCHEDULERS.items()]
    parts = [HEAD, "## Schedulers\n\n`--scheduler NAME`: what an engine computes in its next step.\n\n"]
    parts.append(table(["name", "what it does", "default of"], rows))
    parts.append("\n## Routers\n\n`--router NAME`: which replica a request goes to.\n\n")
    parts.append(_functions(ROUTERS))
    parts.append("\n## Autoscaling policies\n\n`--autoscale policy=NAME,…`: how many replicas there are.\n\n")
    parts.append(_functions(POLICIES))
    parts.append("\nOptions of `--autoscale`, as `key=value` with commas:\n\n" + struct_table(AutoscalingOptions))
    parts.append("\nWhat `hpa` does unless it is told otherwise, and how long a new replica takes to start:\n\n")
    constants, rows = autoscaling_constants(), []
    for group in (constants.hpa, constants.startup):
        rows += [
            [code(f.name), f"{getattr(group, f.name):g}", f.meaning, group.source.get(f.name, "")]
            for f in fields(type(group))
            if f.name != "source"
        ]
    parts.append(table(["figure", "value", "meaning", "source"], rows))
    parts.append(
        "\n## Distributions of lengths\n\n`--input-len`, `--output-len`, `--turns`, `--think-time`: a "
        "number, or one of these.\n\n"
    )
    rows = [[code(name), ", ".join(map(code, kind.needs))] for name, kind in DISTRIBUTIONS.items()]
    parts.append(table(["name", "figures"], rows) + "\nAny of them takes `min` and `max`.\n")
    return "".join(parts)


def _functions(registry: Mapping[str, Callable[..., Any]]) -> str:
    return table(["name", "what it does"], [[code(name), _doc(function)] for name, function in registry.items()])


def _doc(function: Callable[..., Any]) -> str:
    return inspect.cleandoc(function.__doc__ or "").replace("``", "`")
