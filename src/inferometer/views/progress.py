"""How far a long job is, on stderr: bars on a terminal only, so that logs and pipes stay clean.

with progress_bar("simulating", 1000) as update:
    update(250)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LogLine = Callable[[str], None]
StepProgress = Callable[[int, int, str], None]  # done, of how many, and what is next


@contextmanager
def progress_bar(what: str, total: float | None, unit: str = "requests") -> Iterator[Callable[[float], None]]:
    """A bar for something that is counted; ``total`` is None where the end is unknown."""
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


@contextmanager
def log_with_bar() -> Iterator[tuple[LogLine, StepProgress]]:
    """Lines above a bar of steps: ``with log_with_bar() as (log, progress): progress(1, 8, "next")``"""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield (
            lambda line: screen.print(line, markup=False),
            lambda done, total, text: bar.update(task, completed=done, total=total, description=text),
        )
