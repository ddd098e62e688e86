"""``inferometer profile``: measure this machine, or take over what others measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import click

from ..base.errors import BadValue
from ..specs.command_args import ProfileArgs
from .options import FORMS, MODEL_HELP, Command, model_argument, named, one_form, options, schema_options
from .output import Form, log_with_bar, note, quiet, show_page
from .output import as_json as json_text
from .streams import echo

Say = Callable[[str], None]
Progress = Callable[[int, int, str], None]

_EXAMPLES = (
    "--quick -o machine.toml",
    "--kernels -o kernels.csv",
    "llama-3.1-8b --hardware RTX3090 --mode both --prefill-max 2048 --decode-max 2048",
    "--import kernel_tables --gpu h200 -o h200.kernels.csv",
)
_OWN = {
    "--kernels": {"kernels", "kinds"},
    "--quick": {"quick"},
    "--launches": {"launches"},
    "--import": {"tables", "gpu"},
}  # flags that mean nothing to other jobs
_ALSO = {
    "--kernels": {"budget", "device"},
    "--quick": {"device"},
    "--launches": {"device"},
    "--import": set[str](),
}  # flags of MODEL that they share


@click.command(cls=Command, epilog=MODEL_HELP, examples=_EXAMPLES)
@model_argument(required=False)
@click.option("--kernels", is_flag=True, help="Time kernels by shape: GEMM, attention, experts, norms, copies.")
@click.option(
    "--quick",
    is_flag=True,
    help="Time this machine, for --profile: memory, clocks, kernel launches. Takes two or three minutes.",
)
@click.option(
    "--launches", is_flag=True, help="Time the host, for --host-profile: kernel launches and Python. Takes seconds."
)
@click.option("--import", "tables", metavar="PATH", callback=named, help="Import tables measured by other tools.")
@options(schema_options(ProfileArgs))
@click.option(
    "--kinds", metavar="KIND,…", help="With --kernels: only these kinds, in this order; moe:mxfp4 is one format."
)
@click.option("--gpu", help="With --import: the GPU that was measured, if the tables do not name it.")
@click.option("--budget", help="Time to spend measuring, without loading: 90s, 10m, 1h.  [default: kernels 10m]")
@click.option("--device", default="cuda", help="Device to measure: cuda or cpu.")
@click.option("--verbose", is_flag=True, help="Print a line per length, kind or table, even without a terminal.")
@click.option("--json", "as_json", is_flag=True, callback=one_form, help="Write a summary as JSON to stdout.")
@options(FORMS[2:])
@click.option(
    "-o",
    "--output",
    metavar="PATH",
    callback=named,
    help="With MODEL: a folder; rows are added to it. Otherwise: a file.  "
    "[default: ., kernels.csv, machine.toml, host.toml]",
)
@click.pass_context
def profile(
    context: click.Context,
    /,
    model: str | None,
    kernels: bool,
    quick: bool,
    launches: bool,
    tables: str | None,
    verbose: bool,
    as_json: bool,
    as_plain: bool,
    as_markdown: bool,
    output: str | None,
    **arguments: Any,
) -> int:
    """Measure this machine (--quick), the layers of a MODEL, or --kernels by shape; or --import other tools' tables.

    Rows already in the file are kept and not measured again, so an interrupted run loses nothing.
    """
    jobs = (
        ("MODEL", model),
        ("--kernels", kernels),
        ("--quick", quick),
        ("--launches", launches),
        ("--import", tables),
    )
    given = [job for job, value in jobs if value]
    if len(given) != 1:
        raise BadValue(
            "profile needs exactly one of: a MODEL, --kernels, --quick, --launches or --import PATH"
            + (f", not {' and '.join(given)}" if given else "")
        )
    _only(context, given[0])
    from ..profiling.profile import profile as measured

    shared = {name: arguments.pop(name) for name in ("kinds", "gpu", "budget", "device") if name in arguments}
    layers = arguments if model else {}  # what the other jobs have no use for was refused, if it was given
    with _voices(verbose) as (say, progress):
        result = measured(
            model,
            kernels=kernels,
            quick=quick,
            launches=launches,
            tables=tables,
            output=output,
            say=say,
            progress=progress,
            **shared,
            **layers,
        )
    if as_json:
        echo(json_text(result).decode())
    elif model:
        from ..views.text.listing import layer_summary

        show_page(layer_summary(result), Form(False, False, None, as_plain, as_markdown))
    worthless = model and result["calibration"] is not None and result["calibration"]["file"] is None
    return 1 if worthless else 0


def _only(context: click.Context, job: str) -> None:
    """Refuse flags that mean nothing to the job: they would be ignored, and that would not show."""
    for option in context.command.params:
        name = str(option.name)
        if context.get_parameter_source(name) != click.core.ParameterSource.COMMANDLINE:
            continue
        owner = next((other for other, flags in _OWN.items() if name in flags), "MODEL")
        if owner != job and name not in {"output", "as_json", "as_plain", "as_markdown", "verbose"} | _ALSO.get(
            job, set()
        ):
            raise BadValue(f"{option.opts[-1]} belongs to profile {owner}, not to profile {job}")
        if (name.startswith("scaling") or name == "force") and not context.params.get("calibrate"):
            raise BadValue(f"{option.opts[-1]} needs --calibrate")


@contextmanager
def _voices(verbose: bool) -> Iterator[tuple[Say, Progress | None]]:
    """How a job speaks: lines on stderr, and on a terminal a bar below them, if rich is there; or a line a step."""
    bar = _bar() if sys.stderr.isatty() and not verbose and not quiet() else None
    if verbose:
        yield (
            note,
            lambda done, total, what: note(f"{done:,} of {total:,}  {what}".rstrip()),
        )
    elif bar is None:
        yield note, None
    else:
        with bar as voices:
            yield voices


def _bar() -> AbstractContextManager[tuple[Say, Progress]] | None:
    from importlib.util import find_spec

    if find_spec("rich") is None:  # lines will do
        return None
    return log_with_bar()
