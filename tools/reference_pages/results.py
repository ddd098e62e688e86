"""docs/python/results.md: the classes of results, with a table of fields above what mkdocstrings takes from them."""

from __future__ import annotations

import inferometer

from .markdown import code, table
from .struct_fields import MEANINGS, fields, kind_name

HEAD = """# Results

What [the functions](functions.md) return. Fields and methods are written from the code. In a notebook a result shows
itself; in a terminal `rich.print(report)` does.

## All results

::: inferometer.base.result.Result
    options: {heading_level: 3, show_root_heading: false, show_root_toc_entry: false}

::: inferometer.base.result.ComparableResult
    options: {heading_level: 3, show_root_heading: false, show_root_toc_entry: false, inherited_members: false}

"""
OPTIONS = "heading_level: 3, show_root_heading: false, show_root_toc_entry: false, inherited_members: false"
SEEN_AS = {  # class -> the heading of reference/json.md that has its keys
    "Report": "analyze --json",
    "Search": "search --json",
    "Sensitivity": "sensitivity --json",
    "TrainReport": "train --json",
}
RETURNED_BY = {
    "Report": "analyze",
    "Sweep": "sweep",
    "Search": "search",
    "Outcome": "simulate",
    "Capacity": "find_capacity",
    "Trace": "read_trace` and `synthetic",
    "Sensitivity": "sensitivity",
    "TrainReport": "train",
}


def page() -> str:
    """The whole page."""
    return HEAD + "\n".join(_section(name) for name in RETURNED_BY)


def _section(name: str) -> str:
    struct = getattr(inferometer, name)
    lead = f"## {name}\n\nFrom `{RETURNED_BY[name]}`.\n"
    if name in SEEN_AS:
        title = SEEN_AS[name]
        lead += f"Its fields are the keys of [`{title}`](../reference/json.md#{title.replace(' ', '-')}).\n"
        rows = []
    elif name in MEANINGS["attributes"]:
        rows = [[code(key), *note.split(": ", 1)] for key, note in MEANINGS["attributes"][name].items()]
    else:
        rows = [[code(f.name), kind_name(f.kind, lambda inner: inner.__name__), f.meaning] for f in fields(struct)]
    fields_table = "\n" + table(["field", "type", "meaning"], rows) if rows else ""
    return f"{lead}{fields_table}\n::: inferometer.{name}\n    options: {{{OPTIONS}}}\n"
