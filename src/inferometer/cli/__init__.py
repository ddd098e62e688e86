"""The command line: one file per command, which is loaded when it is asked for.

Exit codes: 0 done, 1 infeasible (the reason is in the result), 2 bad request.
"""

from __future__ import annotations

import importlib
import sys

import click

from .. import __version__
from ..base.errors import InferometerError
from ..specs.arguments import flag

# in the order that people meet them; each is a file of this package
COMMANDS = (
    "analyze",
    "sweep",
    "search",
    "sensitivity",
    "simulate",
    "validate",
    "train",
    "profile",
    "bench",
    "show",
    "web",
)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 110, "show_default": True}


class _Commands(click.Group):
    """Commands by file name, so that one command does not pay for the others' imports."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f".{name}", __name__), name)
        return command


@click.group(cls=_Commands, context_settings=CONTEXT)
@click.version_option(__version__, prog_name="inferometer")
def app() -> None:
    """Predicts, explains, measures and plans LLM inference."""


def _shortened(message: str, most: int = 300) -> str:
    """A sentence of click's, which repeats what was typed however long that was."""
    return message if len(message) <= most else f"{message[:most]}…"


def main(args: list[str] | None = None) -> None:
    """Run a command; every error of the request is one sentence on stderr and exit code 2."""
    try:
        code = app.main(args=args, prog_name="inferometer", standalone_mode=False)
    except InferometerError as error:
        click.echo(f"inferometer: {error.text(flag)}", err=True)
        code = 2
    except click.ClickException as error:
        click.echo(f"inferometer: {_shortened(error.format_message())}", err=True)
        code = 2
    except click.Abort:
        code = 130
    except BrokenPipeError:  # the reader (head, less) went away: nothing is wrong
        sys.stderr.close()
        code = 0
    sys.exit(code if isinstance(code, int) else 0)
