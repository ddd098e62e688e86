"""The flags of the commands, made from the schema of arguments; --help shows them by group, with examples."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import click

from ..base.errors import BadValue
from ..base.extras import require_library
from ..base.input_file import has_ending
from ..specs.arguments import Args, Argument, arguments, flag
from ..specs.machine_args import TargetArgs
from ..specs.plan_args import PlanArgs
from .output import Form, note, wrote
from .streams import echo

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

MODEL_HELP = (
    "MODEL: a catalogue name, a Hugging Face id, or the path of a config.json, its folder or a network's TOML file."
)
Decorator = Callable[[Any], Any]
_TYPES = {"int": int, "float": float}
_PATHS = {"FILE": "file", "PATH": "file", "DIR": "dir"}
_PAIR = re.compile(r"\w+:[\d.]+,?")


class ArgumentOption(click.Option):
    """An option that knows the group under which --help shows it, and the default that the schema has."""

    def __init__(
        self, *args: Any, group: str = "", schema_default: Any = None, secret: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.group, self.schema_default, self.secret = group, schema_default, secret

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Files and folders where the flag takes one."""
        kind = _PATHS.get(str(self.metavar))
        return [_path(incomplete, kind)] if kind else super().shell_complete(ctx, incomplete)


class HelpFormatter(click.HelpFormatter):
    """Help of any width: on a narrow screen the texts begin below their flags."""

    def __init__(self, max_width: int | None) -> None:
        import shutil

        super().__init__(width=max(min(shutil.get_terminal_size().columns, max_width or 80) - 2, 30))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Flags and what they are."""
        super().write_dl(rows, col_max if self.width >= 60 else 4, col_spacing)


class HelpMixin(click.Command):
    """A command whose --help can be printed in every encoding, and on every screen."""

    def get_help(self, ctx: click.Context) -> str:
        """click's own is never narrower than 50 columns."""
        formatter = HelpFormatter(ctx.max_content_width)
        self.format_help(ctx, formatter)
        return formatter.getvalue().rstrip("\n")

    def get_help_option_names(self, ctx: click.Context) -> list[str]:
        """Also where a command is looked at without the group that it belongs to."""
        return ["-h", "--help"]

    def get_help_option(self, ctx: click.Context) -> click.Option | None:
        """click's own prints UTF-8 where stdout says ASCII."""
        option = super().get_help_option(ctx)
        if option is not None:
            option.callback = _show_help
            option.help = "Show this message."
        return option


def _show_help(context: click.Context, option: click.Parameter, value: bool) -> None:
    if value and not context.resilient_parsing:
        echo(context.get_help())
        context.exit()


class Command(HelpMixin):
    """A command whose --help has a section per group; what was not given is left to the function that it calls."""

    def __init__(self, *args: Any, examples: Iterable[str] = (), **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        for name in COMMON:
            common_option(name)(self)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Pairs may follow their flag without commas, as in `vllm bench serve`: ``--goodput ttft:500 tpot:50``"""
        pairs = {name for option in self.params if _takes_pairs(option) for name in option.opts}
        args = _flag_before_each_pair(args, pairs)
        if any(arg.partition("=")[0] == "--config" for arg in args) and not ctx.resilient_parsing:
            from .config_file import with_config

            args = with_config(self, ctx, args)
        if any(" " in arg or has_ending(arg, ".yml", ".yaml") for arg in args) and not ctx.resilient_parsing:
            from .config_file import with_server_command

            args = with_server_command(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Call the function with what was given, and with all that its signature names."""
        save = ctx.meta.get("inferometer.save_config")
        if save is not None:
            from ..base.files import output_path
            from .config_file import save_config

            output_path(save)  # refused now, not after an hour
            given = dict(ctx.params)
        function: Any = getattr(self.callback, "__wrapped__", self.callback)
        server = ctx.meta.get("inferometer.server_command")
        if server is not None and self.name != "analyze":  # which has a table of its own
            for use in server.flags:
                if use.status in ("not modelled", "unknown"):
                    note(f"{use.flag} of the command is {use.status}{f': {use.note}' if use.note else ''}")
        _check_outputs(ctx)
        code = function.__code__
        named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if "form" in named:
            params = ctx.params
            params["form"] = Form(**{name: params.pop(name) for name in Form._fields})
        ctx.params = {name: value for name, value in ctx.params.items() if value not in (None, ()) or name in named}
        result = super().invoke(ctx)
        if save is not None:  # not of a request that was refused
            wrote([save_config(save, self, given)])
        return result

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One section per group, in the order in which the groups come."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(option_group(parameter), []).append(record)
        for group, records in sorted(sections.items(), key=lambda section: LAST.get(section[0], 0)):
            with formatter.section(group):
                formatter.write_dl(records)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The examples, then what MODEL may be."""
        if self.examples:
            with formatter.section("Examples"):
                for line in self.examples:
                    formatter.write(_continued(f"inferometer {self.name} {line}", formatter))
        super().format_epilog(ctx, formatter)


class TrainableCommand(Command):
    """A command that is another one, with the flags of training, where ``--train`` is given or its config file says so.

    ``training`` gives that command: it is loaded when it is needed.
    """

    def __init__(self, *args: Any, training: Callable[[], click.Command], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(_train_option(str(self.name), expose_value=False))
        self.training = training

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """The context of the command that is meant."""
        if not _is_training(args, str(info_name)):
            return super().make_context(info_name, args, parent, **extra)
        return self.training().make_context(info_name, args, parent, **extra)


def _train_option(verb: str, **more: Any) -> click.Option:
    help_text = f"Training layouts instead of servers; {verb} --train --help shows its flags."
    return ArgumentOption(["--train"], is_flag=True, group="Training", help=help_text, **more)


def train_option(verb: str) -> Decorator:
    """The flag itself, on the command that it leads to."""
    text = f"{verb} training instead of inference (this help)."
    return click.option("--train", is_flag=True, cls=ArgumentOption, group="Training", help=text.capitalize())


def _is_training(args: list[str], verb: str) -> bool:
    """Whether a command line, or its config file, says ``--train``."""
    if "--train" in args:
        return True
    if not any(arg.partition("=")[0] == "--config" for arg in args):
        return False
    from .config_file import says_train

    return says_train(args, verb)


def option_group(option: click.Parameter) -> str:
    """The heading under which an option is shown."""
    return getattr(option, "group", "") or ("Common options" if "--help" in option.opts else "Options")


def _continued(line: str, formatter: click.HelpFormatter) -> str:
    """A command in as many lines as it takes, so that it can be pasted: a backslash ends all but the last."""
    from textwrap import wrap

    indent = " " * formatter.current_indent
    pieces = wrap(
        line,
        formatter.width - 2,
        initial_indent=indent,
        subsequent_indent=f"{indent}    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return " \\\n".join(pieces) + "\n"


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
    """One argument as a click option; its default stands in the help and is left to the function."""
    names = [*([argument.short] if argument.short else []), argument.flag]
    more: dict[str, Any] = {"cls": ArgumentOption, "group": argument.group, "help": help_text(argument)}
    more |= {"schema_default": argument.default, "secret": argument.secret, "shell_complete": completion(argument)}
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
    """``Concurrent sequences.  [default: 1]``"""
    default = argument.default_text or (
        "" if argument.default is None or argument.default is False else str(argument.default)
    )
    return f"{argument.help}  [default: {default}]".strip() if default else argument.help


_METAVARS = {"int": "N,…", "float": "X,…"}


def axis_options(known: Iterable[Argument]) -> list[Decorator]:
    """Options of arguments that each take several values: ``axis_options(arguments(PlanArgs).values())``"""
    made = []
    for argument in known:
        names = [*([argument.short] if argument.short else []), argument.flag]
        more: dict[str, Any] = {"cls": ArgumentOption, "group": argument.group, "show_default": False}
        more |= {"secret": argument.secret, "shell_complete": completion(argument)}
        if argument.kind == "switch":
            off = f"--no-{argument.flag.removeprefix('--')}"
            made.append(click.option(*names, argument.name, is_flag=True, help=argument.help, **more))
            made.append(click.option(off, f"no_{argument.name}", is_flag=True, hidden=True))
        else:
            text = help_text(argument).replace(": one number, or one per layer", "")  # a list is an axis here
            metavar = (argument.metavar or _METAVARS.get(argument.kind, "WORD,…")).replace("[,N…]", ",…")
            made.append(click.option(*names, argument.name, multiple=True, metavar=metavar, help=text, **more))
    return made


def axis_values(flags: Mapping[str, Any]) -> dict[str, Any]:
    """What was given: of flags their texts, of switches off, on or both."""
    values: dict[str, Any] = {}
    for name, value in flags.items():
        if isinstance(value, bool):
            plain = name.removeprefix("no_")
            if value:
                values[plain] = sorted([*values.get(plain, []), plain == name])
        elif value:
            values[name] = value[-1] if name == "hf_token" else list(value)
    return values


def completion(argument: Argument) -> Any:
    """What a shell offers for an argument: its choices, or names of the catalogue; None where it has neither."""
    values = argument.choices or argument.offered
    return names_completion(values) if values else None


def _path(incomplete: str, kind: str) -> CompletionItem:
    from click.shell_completion import CompletionItem

    return CompletionItem(incomplete, type=kind)


def names_completion(values: str | tuple[str, ...]) -> Any:
    """Completes names of the catalogue, as ``"hardware"``, or those given; after a comma the next one of a list."""

    def complete(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[Any]:
        if incomplete.startswith((".", "/", "~")):
            return [_path(incomplete, "file")]
        before, comma, last = incomplete.rpartition(",")
        names = _catalogue_names(values) if isinstance(values, str) else values
        return [f"{before}{comma}{name}" for name in names if name.startswith(last.lower())]

    return complete


def _catalogue_names(kind: str) -> Iterable[str]:
    from ..specs import catalog

    tables: dict[str, Iterable[str]] = {}
    if kind in ("precisions", "usecases", "agents"):
        tables = {"precisions": catalog.precisions(), "usecases": catalog.usecases(), "agents": catalog.agents()}
    return tables.get(kind) or catalog.names(kind)


def model_argument(required: bool = True) -> Decorator:
    """The MODEL of a command; shells complete names of the catalogue."""
    return click.argument("model", required=required, shell_complete=names_completion("models"))


def output_option(*names: str, **more: Any) -> Decorator:
    """An option of the command alone: where its result goes, and in which form."""
    return click.option(*names, cls=ArgumentOption, group="Output", **more)


GPU = schema_options(TargetArgs, only=["gpu"])
_DRAWN_BY = {"plot": "matplotlib", "html": "plotly"}  # options that need a library of an extra


def plan_options(group: type[Args] = PlanArgs) -> list[Decorator]:
    """The options of a plan: those of `analyze`, or of another group, whose workload comes from requests."""
    return [*GPU, *schema_options(group)]


def named(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """A file or folder that is named has a name."""
    if value is not None and not value.strip():
        raise BadValue(f"{option.opts[-1]} needs the name of a {'folder' if option.name == 'plot' else 'file'}")
    if value is not None and option.name in _DRAWN_BY:  # said before anything is computed
        require_library(option.opts[-1], _DRAWN_BY[option.name])
    return value


def _check_outputs(context: click.Context) -> None:
    """Refuse to replace a file that the same command reads, and to write two results into one file."""
    given = {name: value for name, value in context.params.items() if isinstance(value, str | tuple)}
    outputs = {option.name for option in context.command.params if getattr(option, "callback", None) is named}
    for name in (name for name in given if name in outputs - {"tables"}):
        path = _file_named(given[name])
        for other in given if path and given[name] != "-" else ():
            texts = given[other] if isinstance(given[other], tuple) else (given[other],)
            if other == name or path not in map(_file_named, texts):
                continue
            if other in outputs:
                raise BadValue(f"`{name}` and `{other}` are both {given[name]}: give each a file of its own")
            if os.path.isfile(path):
                raise BadValue(f"`{name}` would replace {given[name]}, which the command reads: give another name")


def _file_named(text: Any) -> str:
    """The one name of a file that is there or could be, "" for what is none: a folder, a device, a number."""
    try:
        path = os.path.realpath(os.path.expanduser(text))
        return "" if os.path.exists(path) and not os.path.isfile(path) else path
    except (OSError, TypeError, ValueError):
        return ""


def one_form(context: click.Context, option: click.Parameter, value: bool) -> bool:
    """JSON, CSV, plain text or Markdown: whichever flag comes second is refused."""
    forms = context.meta.setdefault("forms", [])
    if value and forms:
        raise BadValue(f"{forms[0]} and {option.opts[0]} are two formats of one result: give only one")
    forms += [option.opts[0]] if value else []
    return value


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    """For all who print, however deep: `output.quiet` reads it."""
    if isinstance(value, str):
        named(context, option, value)
    if value:
        context.meta[f"inferometer.{option.name}"] = value


COMMON: dict[str, dict[str, Any]] = {  # what every command takes
    "quiet": {"is_flag": True, "help": "Print results only: no progress, notes or advice."},
    "debug": {"is_flag": True, "help": "Show a traceback for errors."},
    "config": {"metavar": "FILE", "help": "Read flags from a TOML or JSON file; flags typed here win."},
    "save_config": {"metavar": "FILE", "help": "Write the flags that differ from the defaults to a file."},
}
LAST = {"Output": 1, "Common options": 2}  # groups that are shown after all others


def common_option(name: str) -> Decorator:
    """An option of every command: ``common_option("quiet")``"""
    more: dict[str, Any] = {"cls": ArgumentOption, "group": "Common options", "expose_value": False}
    return click.option(flag(name), name, callback=_remember, **more, **COMMON[name])


FORMS = [
    output_option("--json", "as_json", is_flag=True, callback=one_form, help="Write JSON to stdout."),
    output_option("--csv", "as_csv", is_flag=True, callback=one_form, help="Write CSV to stdout."),
    output_option(
        "--plain",
        "as_plain",
        is_flag=True,
        callback=one_form,
        help="Plain ASCII, columns separated by two spaces, for awk.",
    ),
    output_option("--markdown", "as_markdown", is_flag=True, callback=one_form, help="Markdown with GitHub tables."),
]
OUTPUT = [
    *FORMS,
    output_option("-o", "--output", metavar="FILE", callback=named, help="Write to a file instead of stdout."),
]


def one_gpu(verb: str, text: str | None) -> str:
    """The only GPU of a list: ``one_gpu("analyze", "h100-sxm,")  # 'h100-sxm'``"""
    from ..specs.catalog import gpu_names

    if text is None:
        return str(arguments(TargetArgs)["gpu"].default)
    names = gpu_names(text)
    if len(names) > 1:
        raise BadValue(f"{verb} takes one GPU type; give one name to --gpu")
    return names[0]
