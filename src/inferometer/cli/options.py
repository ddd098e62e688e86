"""The flags of the commands, made from the schema of arguments; --help shows them by group, with examples."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import click

from ..base.errors import BadValue
from ..specs.arguments import Args, Argument, arguments
from ..specs.plan_args import PlanArgs, TargetArgs
from .output import Form

MODEL_HELP = (
    "MODEL: a catalogue name, a Hugging Face id, or the path of a config.json, its folder or a network's TOML file."
)
Decorator = Callable[[Any], Any]
_TYPES = {"int": int, "float": float}
_PAIR = re.compile(r"\w+:[\d.]+,?")


class ArgumentOption(click.Option):
    """An option that knows the group under which --help shows it."""

    def __init__(self, *args: Any, group: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.group = group


class Command(click.Command):
    """A command whose --help has a section per group; what was not given is left to the function that it calls."""

    def __init__(self, *args: Any, examples: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pairs may follow their flag without commas, as in `vllm bench serve`: ``--goodput ttft:500 tpot:50``"""
        pairs = {name for option in self.params if _takes_pairs(option) for name in option.opts}
        return super().parse_args(ctx, _flag_before_each_pair(args, pairs))

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with what was given, and with all that its signature names."""
        function: Any = getattr(self.callback, "__wrapped__", self.callback)
        code = function.__code__
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if "form" in named:
            params = ctx.params
            params["form"] = Form(**{name: params.pop(name) for name in Form._fields})
        ctx.params = {name: value for name, value in ctx.params.items() if value not in (None, ()) or name in named}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group, in the order in which the groups come."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(getattr(parameter, "group", "") or "Output", []).append(record)
        for group, records in sorted(sections.items(), key=lambda section: section[0] == "Output"):
            with formatter.section(group):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, then what MODEL may be."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(f"{'':>{formatter.current_indent}}inferometer {self.name} {line}\n")
        super().format_epilog(ctx, formatter)


def _takes_pairs(option: click.Parameter) -> bool:
    return isinstance(option, click.Option) and option.multiple and ":" in str(option.metavar)


def _flag_before_each_pair(args: list[str], flags: set[str]) -> list[str]:
    """``_flag_before_each_pair(["--goodput", "ttft:5", "tpot:1"], {"--goodput"})`` has the flag before both."""
    spelled: list[str] = []
    current = ""  # the flag whose pairs these are
    for arg in args:
        after_flag = bool(spelled) and spelled[-1] in flags
        if current and not after_flag and _PAIR.fullmatch(arg):
            spelled.append(current)
        elif not after_flag:
            current = arg if arg in flags else arg.partition("=")[0] if arg.partition("=")[0] in flags else ""
        spelled.append(arg)
    return spelled


def options(*groups: list[Decorator]) -> Decorator:
    """Stack groups of options on a command, in the order they are shown."""

    def wrap(function: Any) -> Any:
        for option in reversed([o for group in groups for o in group]):
            function = option(function)
        return function

    return wrap


def schema_options(
    group: type[Args], *, only: Iterable[str] | None = None, skip: Iterable[str] = ()
) -> list[Decorator]:
    """The options of a group of arguments, or of some of them: ``schema_options(PlanArgs, skip=["hf_token"])``"""
    known = arguments(group)
    return [option(known[name]) for name in (known if only is None else only) if name not in skip]


def option(argument: Argument) -> Decorator:
    """One argument as a click option; its default is told in the help and left to the function."""
    names = [*([argument.short] if argument.short else []), argument.flag]
    more: dict[str, Any] = {"cls": ArgumentOption, "group": argument.group, "help": help_text(argument)}
    if argument.kind == "switch":
        if argument.default is None:
            names[-1] = f"{argument.flag}/--no-{argument.flag.removeprefix('--')}"
        return click.option(*names, argument.name, is_flag=True, default=None, show_default=False, **more)
    if argument.several:
        return click.option(*names, argument.name, multiple=True, metavar=argument.metavar or None, **more)
    if argument.forms == 1 and argument.kind in _TYPES:
        more["type"] = _TYPES[argument.kind]
    metavar = argument.metavar or "|".join(argument.choices) or None
    return click.option(*names, argument.name, default=None, metavar=metavar, show_default=False, **more)


def help_text(argument: Argument) -> str:
    """``Sequences at once.  [default: 1]``"""
    default = argument.default_text or (
        "" if argument.default is None or argument.default is False else str(argument.default)
    )
    return f"{argument.help}  [default: {default}]".strip() if default else argument.help


def output_option(*names: str, **more: Any) -> Decorator:
    """An option of the command alone: where its result goes, and in which form."""
    return click.option(*names, cls=ArgumentOption, group="Output", **more)


GPU = schema_options(TargetArgs, only=["gpu"])


def plan_options(group: type[Args] = PlanArgs) -> list[Decorator]:
    """The options of a plan: those of `analyze`, or of another group, whose workload comes from requests."""
    return [*GPU, *schema_options(group)]


def named(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A file or folder that is named has a name."""
    if value is not None and not value.strip():
        raise BadValue(f"{option.opts[-1]} needs the name of a {'folder' if option.name == 'plot' else 'file'}")
    return value


def one_form(context: click.Context, option: click.Parameter, value: bool) -> bool:
    """JSON, CSV, plain text or Markdown: whichever flag comes second is refused."""
    forms = context.meta.setdefault("forms", [])
    if value and forms:
        raise BadValue(f"{forms[0]} and {option.opts[0]} are two forms of one result: give one of them")
    forms += [option.opts[0]] if value else []
    return value


FORMS = [
    output_option("--json", "as_json", is_flag=True, callback=one_form, help="JSON to stdout."),
    output_option("--csv", "as_csv", is_flag=True, callback=one_form, help="CSV to stdout."),
    output_option(
        "--plain", "as_plain", is_flag=True, callback=one_form, help="ASCII, columns two spaces apart: for awk."
    ),
    output_option("--markdown", "as_markdown", is_flag=True, callback=one_form, help="Markdown with GitHub's tables."),
]
OUTPUT = [
    *FORMS,
    output_option("-o", "--output", metavar="FILE", callback=named, help="Write there instead."),
]


def one_gpu(verb: str, text: str | None) -> str:
    """The only GPU of a list: ``one_gpu("analyze", "h100-sxm,")  # 'h100-sxm'``"""
    from ..specs.catalog import gpu_names

    if text is None:
        return str(arguments(TargetArgs)["gpu"].default)
    names = gpu_names(text)
    if len(names) > 1:
        raise BadValue(f"{verb} looks at one GPU type at a time; give one name to --gpu")
    return names[0]
