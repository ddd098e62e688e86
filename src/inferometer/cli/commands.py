"""The commands: each is a file of this package, which is loaded when it is run."""

from __future__ import annotations

import importlib
import os
from typing import Any

import click

from .. import __version__
from ..base.errors import InferometerError, UnknownName
from ..specs.arguments import flag
from .options import HelpMixin, common_option
from .streams import echo

# in the order that people meet them, each with the line that --help shows
COMMANDS = {
    "analyze": "Predict one plan: latency, memory, cost, every operator.",
    "sweep": "Predict every combination of values, as a table.",
    "search": "Find the best deployment on your GPUs, and how to start it.",
    "sensitivity": "Which hardware figure matters, or what a target needs.",
    "simulate": "Simulate a server under load; find its highest rate.",
    "validate": "Compare measurements with predictions; calibrate.",
    "train": "Predict training: step time, memory, days and cost.",
    "profile": "Measure kernels and layers here, or import tables.",
    "bench": "Measure a live OpenAI-compatible server.",
    "mock": "Serve OpenAI's API at the predicted speed, without a GPU.",
    "show": "List models, GPUs, engines, precisions and use cases.",
    "web": "Start the web interface.",
}
GREETING = """\
inferometer predicts how fast a language model runs on a machine, how much
memory it needs and what it costs, from its config.json alone.

Three commands to start with:

  inferometer analyze llama-3.1-8b --gpu h200
  inferometer search llama-3.1-70b --gpu h200 --num-gpus 8 --goodput ttft:500
  inferometer web

`inferometer show models` and `show hardware` list the catalogue;
`inferometer --help` lists the commands; COMMAND --help shows examples.
"""
CONTEXT = {"max_content_width": 110, "show_default": True}
COMPLETE = "_INFEROMETER_COMPLETE"  # the variable by which shells ask for completions


class _Commands(HelpMixin, click.Group):
    """Commands by file name, so that one command does not pay for the others' imports."""

    def list_commands(self, context: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = getattr(importlib.import_module(f".{name}", __package__), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise UnknownName("command", args[0], COMMANDS, "(inferometer --help lists them)")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Whole lines, and no command is loaded for its own."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(__version__, prog_name="inferometer")
@common_option("quiet")
@common_option("debug")
@click.pass_context
def app(context: click.Context) -> None:
    """Predicts, explains, measures and plans LLM inference."""
    if context.invoked_subcommand is None:
        echo(GREETING, nl=False)


def run(args: list[str]) -> int:
    """Run one command: ``run(["show", "hardware"])  # 0``; everything that is wrong with the request is raised."""
    instruction = os.environ.get(COMPLETE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(app, {}, "inferometer", COMPLETE, instruction)
    try:
        with app.make_context("inferometer", list(args)) as context:
            code = app.invoke(context)
    except click.exceptions.Exit as stop:  # --help and --version
        return stop.exit_code
    return code if isinstance(code, int) else 0


def sentence(error: Exception) -> str | None:
    """What is wrong with the request, or None if it is the program that is wrong."""
    if isinstance(error, InferometerError):
        return error.text(flag)
    if isinstance(error, click.NoSuchOption):
        return _unknown_option(error)
    if isinstance(error, click.ClickException):
        message = error.format_message()  # repeats what was typed, however long that was
        return message if len(message) <= 300 else f"{message[:300]}…"
    return None


def _unknown_option(error: click.NoSuchOption) -> str:
    """``unknown option '--batchsize'; did you mean --batch-size?``"""
    context = error.ctx
    options: list[Any] = (
        [p for p in context.command.get_params(context) if isinstance(p, click.Option)] if context else []
    )
    names = [name for option in options if not option.hidden for name in (*option.opts, *option.secondary_opts)]
    return UnknownName("option", error.option_name, names).text(flag)
