"""``inferometer profile``: measure this machine, or take over what others measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import click

from ..base.errors import BadValue
from .options import MODEL_HELP, named, options

Say = Callable[[str], None]
Progress = Callable[[int, int, str], None]

LAYERS = [
    click.option("--num-layers", type=int, default=1, help="Layers that are built and timed."),
    click.option("--hardware", metavar="LABEL", help="Name of the machine in the rows.  [default: the device's]"),
    click.option("--mode", default="both", help="prefill, decode or both."),
    click.option("--warmup", type=int, default=10, help="Passes before the clock starts, for each length."),
    click.option("--repeat", type=int, default=100, help="Passes that are timed; the median is written."),
    click.option("--prefill-max", type=int, default=2048, help="Longest prompt."),
    click.option("--decode-max", type=int, default=2048, help="Longest context of a decode step."),
    click.option("--step", type=int, help="Between long lengths; below it they double.  [default: a sixteenth]"),
    click.option("--hf-token", help="For gated configs; HF_TOKEN works too."),
    click.option("--calibrate", is_flag=True, help="Run the whole model too, and scale the rows to its wall time."),
]
SCALING = [
    click.option("--scaling-num-layers", type=int, help="Layers of the whole model.  [default: all that fit]"),
    click.option("--scaling-input-min", type=int, default=128, help="Shortest prompt of the whole model."),
    click.option("--scaling-input-max", type=int, default=1024, help="Longest prompt of the whole model."),
    click.option("--scaling-input-step", type=int, default=128, help="Between prompts of the whole model."),
    click.option("--scaling-repeat", type=int, default=3, help="Runs of each; the median counts."),
]


_OWN = {"--kernels": {"kernels", "kinds"}, "--import": {"tables", "gpu"}}  # flags that mean nothing to other jobs
_ALSO = {"--kernels": {"budget", "device"}, "--import": set[str]()}  # flags of MODEL that they share


@click.command(epilog=MODEL_HELP)
@click.argument("model", required=False)
@click.option("--kernels", is_flag=True, help="Time kernels by shape: products, attention, experts, norms, copies.")
@click.option("--import", "tables", metavar="PATH", callback=named, help="Take over measured tables of other tools.")
@options(LAYERS, SCALING)
@click.option("--kinds", metavar="KIND,…", help="With --kernels: only these kinds.")
@click.option("--gpu", help="With --import: the device that the tables are of, where they do not say.")
@click.option("--budget", help="Time to spend: 90s, 10m, 1h; the most telling come first.  [default: kernels 10m]")
@click.option("--device", default="cuda", help="cuda or cpu.")
@click.option("--json", "as_json", is_flag=True, help="A summary as JSON to stdout.")
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    callback=named,
    help="MODEL: a folder, to which rows are added.  --kernels, --import: a file.  [default: ., kernels.csv]",
)
@click.pass_context
def profile(
    context: click.Context,
    /,
    model: str | None,
    kernels: bool,
    tables: str | None,
    as_json: bool,
    output: str | None,
    **words: Any,
) -> int:
    """Measure this machine: the layers of a MODEL, or --kernels by shape; or --import what others measured.

    Rows that a file has are kept and not measured again; a run that is stopped loses nothing.
    """
    given = [job for job, asked in (("MODEL", model), ("--kernels", kernels), ("--import", tables)) if asked]
    if len(given) != 1:
        raise BadValue(
            "profile does one thing at a time: give a MODEL, --kernels or --import PATH"
            + (f", not {' and '.join(given)}" if given else "")
        )
    _only(context, given[0])
    from ..profiling.profile import profile as measured

    shared = {key: words.pop(key) for key in ("kinds", "gpu", "budget", "device")}
    layers = words if model else {}  # what the other jobs have no use for was refused, if it was given
    with _voices() as (say, progress):
        found = measured(
            model, kernels=kernels, tables=tables, output=output, say=say, progress=progress, **shared, **layers
        )
    if as_json:
        import msgspec

        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=1).decode())
    elif model:
        from ..views.text.listing import layer_summary

        click.echo(layer_summary(found), nl=False)
    return 0


def _only(context: click.Context, job: str) -> None:
    """Refuse flags that mean nothing to the job: they would be ignored, and nobody would know."""
    for option in context.command.params:
        name = str(option.name)
        if context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        owner = next((other for other, flags in _OWN.items() if name in flags), "MODEL")
        if owner != job and name not in {"output", "as_json"} | _ALSO.get(job, set()):
            raise BadValue(f"{option.opts[-1]} belongs to profile {owner}, not to profile {job}")
        if name.startswith("scaling") and not context.params["calibrate"]:
            raise BadValue(f"{option.opts[-1]} needs --calibrate")


@contextmanager
def _voices() -> Iterator[tuple[Say, Progress | None]]:
    """How a job speaks: lines on stderr, and on a terminal a bar below them, if rich is there."""
    bar = _bar() if sys.stderr.isatty() else None
    if bar is None:
        yield lambda line: click.echo(line, err=True), None
    else:
        with bar as voices:
            yield voices


def _bar() -> AbstractContextManager[tuple[Say, Progress]] | None:
    from importlib.util import find_spec

    if find_spec("rich") is None:  # lines will do
        return None
    from ..views.progress import log_with_bar

    return log_with_bar()
