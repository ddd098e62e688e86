"""A bar on stderr for runs that take long: on a terminal only, so that logs and pipes stay clean."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click


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


# ------------------------------------------------------------------ output
# Where a command's result goes: stdout, or a file that was named.


def table_csv(rows: list[dict[str, Any]]) -> str:
    """Rows as CSV text."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def deliver(data: str | bytes, output: str | None) -> None:
    """To a file if one was named, else to stdout."""
    if output is not None:
        from ..views.files import write

        click.echo(f"wrote {write(output, data)}", err=True)
    else:
        text = data.decode() if isinstance(data, bytes) else data
        click.echo(text, nl=not text.endswith("\n"))


def show_rich(renderable: Any, output: str | None) -> None:
    """A rich renderable, as text into a file or in colour to the terminal."""
    from ..views.text import terminal

    screen = terminal.console()
    if output is not None:
        with screen.capture() as captured:
            screen.print(renderable)
        deliver(captured.get(), output)
    else:
        screen.print(renderable)
