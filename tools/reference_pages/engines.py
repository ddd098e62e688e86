"""docs/reference/engines.md: every engine's defaults, the rules that change them, and the figures behind its times."""

from __future__ import annotations

from typing import Any

import msgspec

from inferometer.specs import catalog
from inferometer.specs.engine_rules import SETTINGS
from inferometer.specs.structs import Engine, Rule

from .markdown import code, table
from .struct_fields import fields

HEAD = """# Engines

`--engine` takes any of these names, with a version after `@`: `--engine vllm@0.20`. Without one, the newest is taken
whose defaults were checked. What you give
stands before every default; `analyze --json` says under `engine.defaults` which rule set each value. A file of your
own may say `like = "vllm"` and have only what differs.

"""
PLAIN = Engine()
LEFT_OUT = {"name", "label", "version", "versions", "when", "defaults", "source", "kernels", "launches", *SETTINGS}


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for name in catalog.names("engines"):
        engine = catalog.engine(name)
        parts.append(f"## {name}\n\n{engine.label or name}.{_versions(engine)}\n\n{_settings(engine)}")
        parts += [_rules(engine), _figures(engine), _kernels(engine)]
    return "".join(parts).rstrip() + "\n"


def _versions(engine: Engine) -> str:
    if not engine.versions:
        return " It has no versions to choose from."
    return f" Versions: {', '.join(map(code, engine.versions))}."


def _settings(engine: Engine) -> str:
    rows = []
    for name, public in SETTINGS.items():
        value = getattr(engine, name)
        if value is not None:
            rows.append([code(public), code(_shown(value)), engine.source.get(name, "")])
    return "Defaults before any rule:\n\n" + table(["setting", "default", "source"], rows) + "\n"


def _rules(engine: Engine) -> str:
    if not engine.when:
        return ""
    rows = []
    for rule in engine.when:
        sets = ", ".join(f"`{name} = {_shown(value)}`" for name, value in rule.set.items())
        rows.append([rule.why, _conditions(rule) or "always", sets, rule.source])
    head = "Rules. Of those that hold, the last one that sets a value wins; text in quotes is a formula.\n\n"
    return head + table(["rule", "when", "sets", "source"], rows) + "\n"


def _conditions(rule: Rule) -> str:
    """``memory_at_least 70 GiB``: all of them must hold."""
    given = {key: value for key, value in msgspec.to_builtins(rule).items() if key not in ("set", "why", "source")}
    return ", ".join(code(f"{key} {_condition(key, value)}") for key, value in given.items())


def _condition(key: str, value: Any) -> str:
    if key.startswith("memory"):
        return f"{value / 2**30:g} GiB"
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _figures(engine: Engine) -> str:
    rows = []
    for field in fields(Engine):
        value = getattr(engine, field.name)
        if field.name not in LEFT_OUT and value != getattr(PLAIN, field.name) and not _is_long(value):
            rows.append([code(field.name), code(_shown(value)), field.meaning, engine.source.get(field.name, "")])
    return "Figures:\n\n" + table(["figure", "value", "meaning", "source"], rows) + "\n" if rows else ""


def _kernels(engine: Engine) -> str:
    rows = [
        [code(kind), f"{k.flops:g}", f"{k.hbm:g}", f"{k.link:g}", f"{k.fixed * 1e6:g}", k.source]
        for kind, k in engine.kernels.items()
    ]
    if not rows:
        return ""
    head = ["kind", "of FLOP/s", "of bandwidth", "of link", "fixed µs", "source"]
    note = "Kernels where nothing was measured: shares of the device's peaks, and seconds per call.\n\n"
    return note + table(head, rows, numbers=head[1:5]) + "\n"


def _is_long(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and isinstance(value[0], msgspec.Struct)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{k} = {_shown(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list):
        return "[" + ", ".join(_shown(one) for one in value) + "]"
    return str(value)
