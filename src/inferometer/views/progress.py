"""How far a long job is, on stderr: a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

Say = Callable[[str], None]
Far = Callable[[int, int, str], None]  # done, of how many, and the words for what is next


@contextmanager
def bar() -> Iterator[tuple[Say, Far]]:
    """A way to speak above the bar, and a way to move it: ``with bar() as (say, progress): progress(1, 8, "next")``"""
    screen = Console(stderr=True, highlight=False, soft_wrap=True)
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=screen, transient=True) as shown:
        task = shown.add_task("", total=None)
        yield (
            lambda line: screen.print(line, markup=False),
            lambda done, number, words: shown.update(task, completed=done, total=number, description=words),
        )
