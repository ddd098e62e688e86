"""What a command prints: its result as JSON, CSV or text, to stdout or a file; warnings and progress to stderr."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import click

from .streams import echo

if TYPE_CHECKING:
    from ..views.text.document import Page

LogLine = Callable[[str], None]
StepProgress = Callable[[int, int, str], None]  # done, of how many, and what is next


class Form(NamedTuple):
    """The form of a result, and the file it goes to."""

    as_json: bool
    as_csv: bool
    output: str | None
    as_plain: bool = False
    as_markdown: bool = False

    @property
    def for_programs(self) -> bool:
        """Whether a program reads it: warnings then go to stderr."""
        return self.as_json or self.as_csv


def emit(
    form: Form,
    *,
    json: Callable[[], Any],
    csv: Callable[[], str],
    text: Callable[[], Page],
    warnings: Iterable[str] = (),
    infeasible: str | None = None,
) -> None:
    """Deliver a result in its form; each form is made by its own function, and only if wanted."""
    if form.as_json:
        data = json()
        deliver(data if isinstance(data, bytes) else as_json(data), form.output)
    elif form.as_csv:
        deliver(csv(), form.output)
    else:
        show_page(text(), form)
        return
    for warning in warnings:
        note(f"warning: {warning}")
    if infeasible is not None:
        note(f"infeasible: {infeasible}")


class TableResult(Protocol):
    """A result that is rows, too."""

    feasible: bool
    warnings: list[str]

    @property
    def reason(self) -> str | None:
        """Why it is infeasible."""

    def to_json(self) -> bytes:
        """As indented JSON."""

    def rows(self) -> list[dict[str, Any]]:
        """As a table."""


def emit_result(form: Form, result: TableResult, text: Callable[[], Page]) -> int:
    """Deliver a result; gives the exit code, 1 where it is infeasible."""
    emit(
        form,
        json=result.to_json,
        csv=lambda: table_csv(result.rows()),
        text=text,
        warnings=result.warnings,
        infeasible=None if result.feasible else result.reason,
    )
    return 0 if result.feasible else 1


def quiet() -> bool:
    """Whether --quiet was given: results only."""
    context = click.get_current_context(silent=True)
    return context is not None and "inferometer.quiet" in context.meta


def note(line: str) -> None:
    """A line on stderr beside the result; --quiet leaves it out."""
    if not quiet():
        echo(line, err=True)


def as_json(data: Any) -> bytes:
    """Anything msgspec can encode, as indented JSON; a number that is none (nan, inf) is null, as JSON has no other."""
    import msgspec

    return msgspec.json.format(msgspec.json.encode(data), indent=1)


def wrote(paths: Iterable[Any]) -> None:
    """Say on stderr which files were written; that something went to stdout is seen there."""
    from ..base.input_file import descriptor

    for path in paths:
        if descriptor(path) is None:
            note(f"wrote {path}")


def table_csv(rows: list[dict[str, Any]], columns: Iterable[str] = ()) -> str:
    """Rows as CSV text, or ``columns`` alone if there are none; what is no number (nan, inf) is an empty cell."""
    import csv
    import io

    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0] if rows else columns), lineterminator="\n")
    writer.writeheader()
    finite = ({key: None if _is_no_number(value) else value for key, value in row.items()} for row in rows)
    writer.writerows(finite)
    return out.getvalue()


def _is_no_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def deliver(data: str | bytes, output: str | None) -> None:
    """To a file if one was named, else to stdout; either ends with a line end."""
    text = data.decode() if isinstance(data, bytes) else data
    if output is not None:
        from ..views.files import write

        wrote([write(output, text if text.endswith("\n") else f"{text}\n")])
    else:
        echo(text, nl=not text.endswith("\n"))


def show_page(page: Page, form: Form) -> None:
    """A page for people: as wide as the terminal and in its colours, or as plain text or Markdown; or into a file."""
    if quiet():
        page = page.without_notes()
    if form.as_markdown or form.as_plain:
        deliver(page.markdown() if form.as_markdown else page.plain(), form.output)
        return
    from ..views.text import terminal

    to_file = form.output is not None
    width = None if to_file and "COLUMNS" not in os.environ else terminal.screen_width()
    color = terminal.has_color() and not to_file
    text = page.terminal(width, color)
    if to_file:
        deliver(text, form.output)
    else:
        echo(text, nl=False)


# ------------------------------------------------------------------ progress: bars on a terminal only, logs stay clean


@contextmanager
def progress_bar(what: str, total: float | None, unit: str = "requests") -> Iterator[Callable[[float], None]]:
    """A bar for something that is counted; ``total`` is None where the end is unknown.

    ``with progress_bar("simulating", 1000) as update: update(250)``
    """
    if quiet() or not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    reached = "{task.completed:,.0f} " + ("of {task.total:,.0f} " if total else "") + unit
    screen = Console(stderr=True)
    times = (TimeElapsedColumn(), TimeRemainingColumn()) if screen.width >= 72 else ()  # else their figures are cut
    columns = (TextColumn(what), BarColumn(), TextColumn(reached), *times)
    with Progress(*columns, console=screen, transient=True) as bar:
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
