"""What there is to choose from: models, hardware, engines, precisions, use cases, presets; and the controls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click
import msgspec

from ..inference.analyze import device_info
from ..inference.memory import parameters
from ..network import families
from ..specs import catalog
from ..views.text.listing import listing
from .page_plan import DEFAULT_MODEL


class Extra(msgspec.Struct, forbid_unknown_fields=True):
    """What a control has beyond its flag: a label for people, and the bounds of its slider."""

    group: str
    label: str
    unit: str = ""
    kind: str = ""
    help: str = ""
    default: str | None = None
    least: float | None = None
    most: float | None = None
    step: float | str | None = None
    choices: str | list[str] = ""


class Preset(msgspec.Struct, forbid_unknown_fields=True):
    """A plan to begin with."""

    label: str
    help: str
    plan: dict[str, Any]


class Control(msgspec.Struct, kw_only=True):
    """One argument of a plan as the page shows it."""

    name: str
    flag: str
    group: str
    label: str
    help: str
    kind: str  # choice, number, switch, text
    unit: str
    least: float | None
    most: float | None
    step: float | str | None
    default: Any
    choices: list[str]


def catalogue() -> dict[str, Any]:
    """Everything by its kind: ``catalogue()["hardware"][0]["name"]``"""
    presets = catalog.constants("presets", dict[str, Preset])
    return {
        "models": [_model(name) for name in catalog.names("models")],
        "hardware": [device_info(catalog.hardware(name)) for name in catalog.names("hardware")],
        **{kind: listing(kind) for kind in ("engines", "precisions", "usecases")},
        "presets": [{"name": name, **msgspec.to_builtins(one)} for name, one in presets.items()],
    }


def _model(name: str) -> dict[str, Any]:
    entry = catalog.model(name)
    built = families.build(entry.config, name)
    return {
        "name": name,
        "label": name,
        "params": round(parameters(built)),
        "layers": built.num_layers,
        "active_params": round(parameters(built, "active")),
        "family": built.family,
        "kind": built.kind,
        "max_position": built.max_position or None,
        "images": built.vision is not None,
    }


def controls(flags: Mapping[str, click.Option]) -> list[Control]:
    """The controls in order, from the flags of ``analyze`` and what the page adds to them."""
    return [_control(name, extra, flags.get(name)) for name, extra in extras().items()]


def control_label(name: str) -> str:
    """What the page calls an argument: ``control_label("batch_size")  # 'Batch size'``"""
    extra = extras().get(name)
    return extra.label if extra else name


def extras() -> dict[str, Extra]:
    """What the page adds to each flag, by keyword."""
    return catalog.constants("controls", dict[str, Extra])


def _control(name: str, extra: Extra, flag: click.Option | None) -> Control:
    allowed = _choices(extra.choices)
    if flag is None:
        return Control(
            name=name,
            flag="MODEL",
            group=extra.group,
            label=extra.label,
            help=extra.help,
            kind="text",
            unit="",
            least=None,
            most=None,
            step=None,
            default=extra.default or DEFAULT_MODEL,
            choices=[],
        )
    default = flag.default if isinstance(flag.default, str | int | float) else None
    if flag.is_flag and not flag.secondary_opts:
        default = False  # one without its --no- form is off
    number = isinstance(flag.type, click.types.IntParamType | click.types.FloatParamType)
    kind = extra.kind or ("switch" if flag.is_flag else "choice" if allowed else "number" if number else "text")
    return Control(
        name=name,
        flag=max(flag.opts, key=len),
        group=extra.group,
        label=extra.label,
        help=flag.help or "",
        kind=kind,
        unit=extra.unit,
        least=extra.least,
        most=extra.most,
        step=extra.step,
        default=default,
        choices=allowed,
    )


def _choices(given: str | list[str]) -> list[str]:
    if isinstance(given, list):
        return given
    if given == "links":
        return sorted({link for name in catalog.names("hardware") for link in catalog.hardware(name).links})
    tables: dict[str, Iterable[str]] = {"precisions": catalog.precisions(), "usecases": catalog.usecases()}
    return list(tables[given]) if given in tables else catalog.names(given) if given else []
