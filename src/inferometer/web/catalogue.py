"""What there is to choose from: models, hardware, engines, precisions, use cases, presets; and the controls."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from .. import __version__
from ..inference.analyze import device_info
from ..inference.weights import active_parameters, parameters
from ..network import families
from ..specs import catalog
from ..specs.arguments import Argument
from ..views.text.listing import listing
from .page_plan import page_arguments, training_arguments

_WORDS = {  # of a name, as they are written in a label
    **{word: word.upper() for word in ("mtp", "cpu", "cuda", "fp8")},
    "moe": "MoE",
    "grad": "gradient",
    "impl": "",
    "num": "",
}
GROUPS = ("Model", "Machine", "Precision", "Layout", "Workload", "Methods", "KV tiers", "Engine")  # in the page's order
MODEL_HELP = "A catalogue name, or your own config.json."  # a page reads no other files


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
    default_text: str  # of one that is no value: "the engine's"
    choices: list[str]


def catalogue() -> dict[str, Any]:
    """Everything by its kind: ``catalogue()["hardware"][0]["name"]``"""
    presets = catalog.constants("presets", dict[str, Preset])
    return {
        "version": __version__,
        "models": [_model(name) for name in catalog.names("models")],
        "hardware": [device_info(catalog.hardware(name)) for name in catalog.names("hardware")],
        **{kind: listing(kind) for kind in ("engines", "precisions", "usecases")},
        "training": training_controls(),
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
        "active_params": round(active_parameters(built)),
        "family": built.family,
        "kind": built.kind,
        "max_position": built.max_position or None,
        "images": built.vision is not None,
    }


def controls() -> list[Control]:
    """Every argument of a plan that has a label, group by group."""
    shown = [argument for argument in page_arguments().values() if argument.label]
    return [_control(argument) for argument in sorted(shown, key=lambda argument: GROUPS.index(_group(argument)))]


def training_controls() -> list[Control]:
    """Every argument of training, in the order of the schema."""
    choices = _training_choices()
    return [
        msgspec.structs.replace(
            _control(argument),
            label=_training_label(argument),
            **({"choices": choices[name], "kind": "choice"} if name in choices else {}),
        )
        for name, argument in training_arguments().items()
    ]


def _training_choices() -> dict[str, list[str]]:
    """What the verb allows of arguments that the schema leaves open."""
    from ..training.passes import CP_COMM_TYPES, CUDA_GRAPHS, PRECISIONS, RECOMPUTE, training_constants

    return {
        "engine": ["megatron", "roofline"],
        "precision": list(PRECISIONS),
        "recompute": list(RECOMPUTE),
        "cp_comm_type": list(CP_COMM_TYPES),
        "optimizer": list(training_constants().optimizers),
        "cuda_graph_impl": list(CUDA_GRAPHS),
        "moe_flex_dispatcher_backend": ["deepep", "hybridep"],
        "grad_dtype": ["fp32", "bf16", "fp16"],
        "attention": ["flash", "eager"],
        "zero": ["0", "1", "2", "3"],
    }


def _training_label(argument: Argument) -> str:
    """Its own, that of the same argument of a plan, or its name: ``Global batch size``"""
    same = page_arguments().get(argument.name)
    parts = [_WORDS.get(part, part) for part in argument.name.removesuffix("_size").split("_")]
    name = " ".join(filter(None, parts))
    return argument.label or (same.label if same else "") or name[0].upper() + name[1:]


def control_label(name: str) -> str:
    """What the page calls an argument: ``control_label("batch_size")  # 'Batch size'``"""
    argument = page_arguments().get(name)
    if argument is None and name in training_arguments():
        return _training_label(training_arguments()[name])
    return argument.label if argument and argument.label else name


def _group(argument: Argument) -> str:
    return "Model" if argument.name == "model" else argument.group


def _control(argument: Argument) -> Control:
    choices = _choices(argument)
    kind = {"switch": "switch", "int": "number", "float": "number"}.get(argument.kind, "choice" if choices else "text")
    default = argument.default
    if default is None and argument.default_text in choices:
        default = argument.default_text
    slider = argument.slider
    return Control(
        name=argument.name,
        flag=argument.flag,
        group=_group(argument),
        label=argument.label,
        help=MODEL_HELP if argument.name == "model" else argument.help,
        kind=kind,
        unit=argument.unit,
        least=slider.least if slider else None,
        most=slider.most if slider else None,
        step=slider.step if slider else None,
        default=default,
        default_text=argument.default_text,
        choices=choices,
    )


def _choices(argument: Argument) -> list[str]:
    """What is allowed, or what the catalogue has of it."""
    offered = argument.choices or argument.offered
    if not isinstance(offered, str):
        return list(offered)
    if offered == "links":
        return sorted({link for name in catalog.names("hardware") for link in catalog.hardware(name).links})
    tables: dict[str, Iterable[str]] = {"precisions": catalog.precisions(), "usecases": catalog.usecases()}
    return list(tables[offered]) if offered in tables else catalog.names(offered)
