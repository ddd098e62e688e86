"""A bar on stderr for runs that take long: on a terminal only, so that logs and pipes stay clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def progress(what: str, total: float | None, unit: str = "requests") -> Iterator[Callable[[float], None]]:
    """``with progress("simulating", 1000) as reached: reached(250)``"""
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    reached = "{task.completed:,.0f} " + ("of {task.total:,.0f} " if total else "") + unit
    columns = (TextColumn(what), BarColumn(), TextColumn(reached), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done: bar.update(task, completed=done)
