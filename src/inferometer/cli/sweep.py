"""``inferometer sweep``: every combination of values, as one table."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from ..views.progress import progress_bar
from .options import ENGINE, MACHINE, METHODS, MODEL_HELP, NUMBERS, OUTPUT, WORKLOAD, named, options
from .output import show_rich

if TYPE_CHECKING:
    from ..sweep.digest import Digest
    from ..sweep.grid import Grid
    from ..sweep.points import Chunk

_AXES = (
    "Every flag of analyze is an axis. Numbers: 1,2,4 or 16:8000:16 by step or 1:1024:x2 by ratio, or all of them "
    "with commas between. Words: bf16,fp8. Any flag may be given more than once; a switch and its --no- form "
    "together try both. MODEL may be a list, too. "
)
_METAVARS = {"integer": "N,…", "float": "X,…"}


def _flags() -> list[Callable[[Any], Any]]:
    """The flags of analyze, each of which takes several values here."""

    def holder() -> None:
        """Has the options of analyze."""

    options(WORKLOAD, MACHINE, METHODS, NUMBERS, ENGINE)(holder)
    found: list[Callable[[Any], Any]] = []
    for option in reversed(holder.__click_params__):  # type: ignore[attr-defined]
        if option.is_flag:
            off = option.secondary_opts or [f"--no-{option.opts[-1].removeprefix('--')}"]
            found.append(click.option(*option.opts, option.name, is_flag=True, help=option.help))
            found.append(click.option(*off, f"no_{option.name}", is_flag=True, hidden=True))
        else:
            usual = f"  [default: {option.default}]" if isinstance(option.default, str | int | float) else ""
            text = option.help.replace(": one number, or one per layer", "") + usual  # a list is an axis here
            wide = (option.metavar or _METAVARS.get(option.type.name, "WORD,…")).replace("[,N…]", ",…")
            found.append(
                click.option(*option.opts, option.name, multiple=True, metavar=wide, help=text, show_default=False)
            )
    return found


@click.command(epilog=_AXES + MODEL_HELP)
@click.argument("model")
@options(_flags())
@click.option("--plot", metavar="DIR", callback=named, help="Draw curves along every axis of numbers, and the front.")
@options(OUTPUT)
def sweep(model: str, plot: str | None, as_json: bool, as_csv: bool, output: str | None, **flags: Any) -> int:
    """Price every combination of values: a table of plans and workloads, those that cannot work marked.

    The file's name says what -o writes: .csv .json .jsonl .parquet
    """
    from ..sweep.digest import Digest
    from ..sweep.points import chunks, column_kinds
    from ..sweep.sweep import Sweep, checked_grid
    from ..sweep.writers import TEXT_FORMATS, file_format, write

    said = "json" if as_json else "csv" if as_csv else None
    form = file_format(output, said) if output is not None else said
    words = _words(flags)
    grid = checked_grid(model, words.pop("gpu", "h100-sxm"), to_file=output is not None and plot is None, **words)
    digest, began = Digest(grid), time.perf_counter()
    with progress_bar("pricing", grid.points, "points") as reached:
        stream: Iterable[Chunk] = _watched(digest.watch(chunks(grid)), reached)
        if plot is not None:
            kept = Sweep(grid, stream)
            stream = kept.chunks
        if output is not None and form is not None:
            write(output, form, stream, column_kinds(grid), grid.axes, grid.warnings)
        elif form is not None:
            for text in TEXT_FORMATS[form](stream, column_kinds(grid), grid.axes, grid.warnings):
                click.echo(text.decode(), nl=False)
        deque(stream, maxlen=0)
    took = time.perf_counter() - began
    if plot is not None:
        from ..views.plots.curves import write_curves

        for path in write_curves(kept, plot):
            click.echo(f"wrote {path}", err=True)
    _say(grid, digest, took, output, form)
    return 0 if digest.feasible else 1


def _words(flags: dict[str, Any]) -> dict[str, Any]:
    """What was given: of flags their texts, of switches off, on or both."""
    found: dict[str, Any] = {}
    for name, value in flags.items():
        if isinstance(value, bool):
            word = name.removeprefix("no_")
            if value:
                found[word] = sorted([*found.get(word, []), word == name])
        elif value:
            found[name] = value[-1] if name == "hf_token" else list(value)
    return found


def _watched(stream: Iterator[Chunk], reached: Callable[[float], None]) -> Iterator[Chunk]:
    for chunk in stream:
        yield chunk
        reached(chunk.start + len(chunk))


def _say(grid: Grid, digest: Digest, took: float, output: str | None, form: str | None) -> None:
    """The best of it for people; beside a table for programs, a few lines on stderr."""
    from ..views.text.sweeps import counted, summary

    if form is None:
        show_rich(summary(grid, digest, took), None)
        return
    if output is not None:
        click.echo(f"wrote {output}: {counted(digest, took)}", err=True)
    for warning in grid.warnings:
        click.echo(f"warning: {warning}", err=True)
    if not digest.feasible:
        click.echo(f"infeasible: {'; '.join(list(digest.reasons)[:3])}", err=True)
