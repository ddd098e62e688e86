"""``--config`` and ``--save-config``: the flags of a command as a TOML or JSON file; or a server's own command.

A file becomes arguments of the command line, so its values are checked by what checks flags:

    model = "llama-3.1-8b"         # with_config(analyze, context, ["--config", "plan.toml"])
    batch-size = 8                 # ["--config", "plan.toml", "--batch-size=8", "llama-3.1-8b"]
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

import click

from ..base.errors import BadFile, BadValue, UnknownName, abbreviate
from ..base.files import input_path, read_toml_or_json, user_path

FORM_NAMES = {"as_json", "as_csv", "as_plain", "as_markdown"}  # one of them typed is instead of the other
LENGTHS = {"batch_size", "input_len", "output_len", "beam_width"}  # a use case has its own


# ------------------------------------------------------------------ from a file


def with_config(command: click.Command, context: click.Context, args: list[str]) -> list[str]:
    """The command line with the flags of its ``--config`` file, but for those that it has itself."""
    typed, _, _ = command.make_parser(context).parse_args(list(args))
    if "config" not in typed:  # the word was the value of another flag
        return args
    given = {name for name, value in typed.items() if isinstance(value, str | bool | list | tuple) and value != ()}
    given |= FORM_NAMES if given & FORM_NAMES else set()
    given |= {name.removeprefix("no_") for name in given}  # a sweep has a switch's two values as two options
    options: list[str] = []
    more: list[str] = []
    path, known = str(typed["config"]), _keys(command)
    if not path.strip():
        raise BadValue("--config needs the name of a file")
    for key, value in _table(path, str(command.name), _verbs(context)).items():
        parameter = known.get(key.replace("_", "-"))
        if parameter is None:
            raise UnknownName(f"key of {path}", key, known)
        if parameter.name in given:
            continue
        pieces = _spelled(command, parameter, value, f"{path}: `{key}`")
        (more if isinstance(parameter, click.Argument) else options).extend(pieces)
    return [*options, *args, *(["--"] if more and "--" not in args else []), *more]


def says_train(args: list[str], verb: str) -> bool:
    """Whether the ``--config`` file of a command line has ``train = true`` for a command."""
    for at, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == "--config" and (equals or at + 1 < len(args)):
            path = value if equals else args[at + 1]
            return bool(path.strip()) and _table(path, verb, []).get("train") is True
    return False


def _keys(command: click.Command) -> dict[str, click.Parameter]:
    """What a file may say, by the long names of flags: ``{"model": …, "batch-size": …}``"""
    keys: dict[str, click.Parameter] = {}
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            keys[str(parameter.name)] = parameter
        elif isinstance(parameter, click.Option) and parameter.expose_value and not parameter.hidden:
            keys[parameter.opts[-1].removeprefix("--")] = parameter
    return keys


def _verbs(context: click.Context) -> list[str]:
    root = context.find_root().command
    return root.list_commands(context) if isinstance(root, click.Group) else [str(root.name)]


def _table(text: str, verb: str, verbs: list[str]) -> dict[str, Any]:
    """The keys of a file for a command: those at its top, then those of the command's own table."""
    data = read_toml_or_json(input_path(text))
    flat = {key: value for key, value in data.items() if key not in verbs or not isinstance(value, dict)}
    own = data.get(verb)
    return {**flat, **(own if isinstance(own, dict) else {})}


def _spelled(command: click.Command, parameter: click.Parameter, value: Any, where: str) -> list[str]:
    """A value as arguments: ``["--batch-size=8"]``"""
    values = value if isinstance(value, list) else [value]
    if isinstance(parameter, click.Option) and parameter.is_flag:
        if not all(isinstance(v, bool) for v in values):
            raise BadFile(f"{where} must be true or false, not {abbreviate(value)}")
        switches = {True: parameter.opts[-1], False: _off(command, parameter)}
        return [switch for v in values if (switch := switches[v])]
    texts = [_text(v, str(parameter.metavar), where) for v in values]
    if isinstance(parameter, click.Argument):
        return [",".join(texts)]
    return [f"{parameter.opts[-1]}={text}" for text in (texts if parameter.multiple else [",".join(texts)])]


def _off(command: click.Command, switch: click.Option) -> str | None:
    """The flag that says no: ``--no-fusion``; None where leaving the flag away does."""
    off = f"--no-{switch.opts[-1].removeprefix('--')}"
    return off if any(off in (*option.opts, *option.secondary_opts) for option in command.params) else None


def _text(value: Any, metavar: str, where: str) -> str:
    """One value as it is typed; a table as the flag's own form of pairs, or as JSON."""
    if isinstance(value, Mapping):
        if metavar == "JSON":
            import msgspec

            return msgspec.json.encode(value).decode()
        sign = ":" if metavar.startswith("METRIC:") else "="
        return ",".join(f"{key}{sign}{_text(v, '', where)}" for key, v in value.items())
    if isinstance(value, bool) and metavar:
        raise BadFile(f"{where} takes a value, not {str(value).lower()}")
    if isinstance(value, list) or value is None:
        raise BadFile(f"{where} takes one value, not {abbreviate(value)}")
    return str(value).lower() if isinstance(value, bool) else str(value)


# ------------------------------------------------------------------ from the command that starts a server


def with_server_command(command: click.Command, context: click.Context, args: list[str]) -> list[str]:
    """The command line with the flags of the server's command that stands in place of a model; what is typed wins.

    ``analyze 'vllm serve Qwen/Qwen3-8B -tp 2' --gpu h200`` is ``analyze Qwen/Qwen3-8B --engine vllm -tp 2 --gpu h200``.
    """
    from ..specs.server_command import is_server_command

    typed, left, _ = command.make_parser(context).parse_args(list(args))
    takes_model = bool(command.params) and any(parameter.name == "model" for parameter in command.params)
    text = str(typed.get("model") or (left[0] if left else ""))
    if not takes_model or not is_server_command(text) or text not in args:
        return args
    from ..specs.server_flags import server_command

    server = server_command(text)
    known = {str(parameter.name): parameter for parameter in command.params if isinstance(parameter, click.Option)}
    options: list[str] = []
    for name, value in server.arguments.items():
        uses = [use for use in server.flags if use.argument == name]
        if name in typed and typed[name] not in (None, ()):
            for use in uses:
                use.status, use.note = "no effect", f"{known[name].opts[-1]} is given here"
        elif name in known:
            options += _spelled(command, known[name], value, f"the command: `{name}`")
        else:
            for use in uses:
                use.status, use.note = "no effect", f"of a server over time, which {command.name} does not look at"
    context.meta["inferometer.server_command"] = server
    at = args.index(text)
    return [*options, *args[:at], server.model, *args[at + 1 :]]


# ------------------------------------------------------------------ to a file


def save_config(text: str, command: click.Command, params: Mapping[str, Any]) -> Path:
    """Write what was given and differs from the defaults, so that ``--config`` gives the same again."""
    from ..views.files import write

    values = config_values(command, params)
    if user_path(text).suffix == ".json":
        from .output import as_json

        return write(text, as_json(values) + b"\n")
    head = (
        f"# Flags of inferometer {command.name} that differ from the defaults; "
        f"use: inferometer {command.name} --config FILE"
    )
    lines = [head, *(f"{key} = {_toml(value)}" for key, value in values.items())]
    try:
        return write(text, "\n".join(lines) + "\n")
    except UnicodeEncodeError:
        raise BadValue("--save-config writes text, but the value of a flag is not valid text") from None


def config_values(command: click.Command, params: Mapping[str, Any]) -> dict[str, Any]:
    """The flags of a file, by their long names; secrets are left out."""
    values: dict[str, Any] = {}
    for key, parameter in _keys(command).items():
        name = str(parameter.name)
        value = params.get(name)
        if isinstance(parameter, click.Option) and parameter.is_flag and params.get(f"no_{name}"):
            values[key] = [False, True] if value else False
        elif value not in (None, ()) and not _is_default(parameter, value, params):
            several = [_number(item) for item in value] if isinstance(value, tuple) else [_number(value)]
            values[key] = several if len(several) > 1 else several[0]
    return values


def _is_default(parameter: click.Parameter, value: Any, params: Mapping[str, Any]) -> bool:
    """Whether it need not be said: it is secret, or the default. What something else can set is always said."""
    if getattr(parameter, "secret", False):
        return True
    if parameter.name == "frontend" or (parameter.name in LENGTHS and params.get("usecase")):
        return False
    if isinstance(parameter, click.Option) and parameter.is_flag and not parameter.secondary_opts:
        return not value
    default = getattr(parameter, "schema_default", None)
    default = parameter.default if default is None else default
    return bool(value == default) or (isinstance(value, str) and value == str(default))


def _number(value: Any) -> Any:
    """A text that is a number as a number, if it is spelled as a file would spell it; JSON has no infinity."""
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    kinds: tuple[Callable[[str], Any], ...] = (int, float)
    for kind in kinds if isinstance(value, str) else ():
        try:
            if str(number := kind(value)) == value and isfinite(number):
                return number
        except (ValueError, OverflowError):
            continue
    return value


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        from json import dumps

        return dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else str(value)
