"""The arguments of a plan as a page sends them: which it may give, and the same plan as a command line.

A page speaks for anyone who opened a link, so it names what the catalogue has: no files of this machine, and nothing
that would have to be fetched from another one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue, UnknownName, abbreviate, is_number
from ..base.ranges import as_list
from ..specs import catalog
from ..specs.arguments import Argument, arguments, flag
from ..specs.machine_args import TargetArgs
from ..specs.plan_args import PlanArgs
from ..specs.train_args import TrainArgs

# Said even where they are the default: a mailed command keeps its meaning, and a use case has lengths of its own.
_ALWAYS_SAID = ("gpu", "batch_size", "input_len", "output_len", "beam_width")
PAGE_ONLY = ("config", "gpu_figures")  # arguments that the command line spells otherwise
_NAME = re.compile(r"[A-Za-z0-9][\w.+ -]{0,120}(/[A-Za-z0-9][\w.+ -]{0,120})?(?<!\.json)(?<!\.toml)", re.ASCII)
_FIGURE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


def page_arguments() -> dict[str, Argument]:
    """All arguments of a plan by name; those without a label are files and secrets of this machine."""
    return {**arguments(TargetArgs), **arguments(PlanArgs)}


def training_arguments() -> dict[str, Argument]:
    """All arguments of training by name, without secrets of this machine."""
    return {name: argument for name, argument in arguments(TrainArgs).items() if not argument.secret}


PRIVATE = tuple(name for name, argument in page_arguments().items() if not argument.label)
ARGUMENTS = tuple(name for name, argument in page_arguments().items() if argument.label)  # that a page may give
DEFAULT_MODEL: str = page_arguments()["model"].default


class PagePlan(NamedTuple):
    """A plan that names only what the catalogue has; ``model`` may be the path of a config.json that came with it."""

    model: str
    gpu: str
    options: dict[str, Any]  # all other arguments
    label: str  # what the command line calls the model

    def without_options(self) -> PagePlan:
        """The same model and GPU, for a command that spells its options itself."""
        return self._replace(options={})


def page_plan(given: Any, folder: Path) -> PagePlan:
    """Check a plan; a config.json that came with it is put into the folder: ``page_plan({"gpu": "h200"}, folder)``"""
    if not isinstance(given, Mapping):
        example = f'{{"model": "{DEFAULT_MODEL}", "gpu": "h200"}}'
        raise BadValue(f"a plan is an object such as {example}, not {abbreviate(given)}")
    options = {name: value for name, value in given.items() if value is not None}
    check_allowed("key of a plan", options, (*ARGUMENTS, *PAGE_ONLY))
    config, figures = options.pop("config", None), options.pop("gpu_figures", {})
    model, gpu = options.pop("model", DEFAULT_MODEL), options.pop("gpu", page_arguments()["gpu"].default)
    if not isinstance(model, str):
        raise BadValue(f"the model must be a name, not {abbreviate(model)}", field="model")
    if not isinstance(gpu, str):
        raise BadValue(f"a name must be text, not {abbreviate(gpu)}", field="gpu")
    options = catalogued({**({} if config is not None else {"model": model}), "gpu": gpu, **options})
    known, gpu = options.pop("model", ""), options.pop("gpu")
    gpu = f"{gpu}{_gpu_changes(gpu, figures)}"
    if config is None:
        return PagePlan(known, gpu, options, model.strip())
    if not isinstance(config, Mapping):
        raise BadValue(f"a config.json is an object, not {abbreviate(config)}", field="model")
    name = file_name(model.rpartition("/")[2] if model != DEFAULT_MODEL else "uploaded")
    folder.mkdir(mode=0o700, exist_ok=True)
    path = folder / name / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(config))
    return PagePlan(str(path), gpu, options, f"{name}/config.json")


def check_allowed(what: str, names: Iterable[str], allowed: Iterable[str]) -> None:
    """Refuse a name that is not allowed: ``check_allowed("key of a plan", ["batchsize"], ARGUMENTS)``"""
    allowed = tuple(allowed)
    for name in names:
        if name not in allowed:
            raise UnknownName(what, name, allowed, field=str(name))


def catalogued(options: Mapping[str, Any]) -> dict[str, Any]:
    """The same options with models, GPUs, engines and hosts under the catalogue's own names; others are refused.

    What a client wrote goes no further, so it cannot be taken for a path: ``catalogued({"gpu": "H200"})``. Values may
    be lists of names, as axes are.
    """
    for name, value in options.items():
        for text in _texts(value):
            if any(ord(letter) < 32 for letter in text):
                raise BadValue(f"`{name}` has a character that cannot be printed: {abbreviate(text)}")
    known = {name: _catalogued(name, value) for name, value in options.items() if name in _SPLIT and value is not None}
    if options.get("speculative_config") is not None:
        known["speculative_config"] = _with_known_drafts(options["speculative_config"])
    return {**options, **known}


def model_name(text: str) -> str:
    """The catalogue's name of a model: ``model_name("meta-llama/Llama-3.1-8B")  # 'llama-3.1-8b'``"""
    entry = catalog.catalog_entry(text) if _NAME.fullmatch(text) else None
    if entry is None:
        raise UnknownName("model", text, catalog.names("models"), "(or give its config.json)", field="model")
    name = entry.name if not entry.quantization else catalog.normalized(text.rpartition("/")[2])
    return name if catalog.catalog_entry(name) is entry else catalog.normalized(text)


def _registered(folder: str, what: str, field: str, text: str) -> str:
    name = catalog.registered_name(folder, text) if _NAME.fullmatch(text) else None
    if name is None:
        raise UnknownName(what, text, catalog.names(folder), field=field)
    return name


def _gpu_name(text: str) -> str:
    name, colon, figures = text.partition(":")
    return f"{_registered('hardware', 'GPU', 'gpu', name.strip())}{colon}{figures}"


def _engine_name(text: str) -> str:
    name, version = catalog.engine_name(text)
    return _registered("engines", "engine", "engine", name) + (f"@{version}" if version else "")


def _host_name(text: str) -> str:
    name, colon, figures = text.partition(":")
    return f"{_registered('hosts', 'host', 'host_profile', name.strip())}{colon}{figures}"


def _between_commas(text: str) -> list[str]:
    return text.split(",")


_SPLIT: dict[str, tuple[Callable[[str], list[str]], Callable[[str], str]]] = {  # into names, and what each is called
    "model": (_between_commas, model_name),
    "gpu": (catalog.gpu_names, _gpu_name),
    "engine": (_between_commas, _engine_name),
    "host_profile": (catalog.gpu_names, _host_name),
}


def _catalogued(field: str, value: Any) -> Any:
    """One name, several with commas between, or a list of such."""
    split, rename = _SPLIT[field]
    for item in as_list(value):
        if not isinstance(item, str):
            raise BadValue(f"a name must be text, not {abbreviate(item)}", field=field)
    renamed = [",".join(rename(name.strip()) for name in split(item)) for item in as_list(value)]
    return renamed if isinstance(value, list) else renamed[0]


def _with_known_drafts(value: Any) -> Any:
    """``speculative_config`` with the catalogue's name of the model that drafts."""
    if isinstance(value, list):
        return [_with_known_drafts(item) for item in value]
    config = value
    if isinstance(value, str):
        try:
            config = json.loads(value)  # as the request reads it
        except (ValueError, RecursionError):
            return value  # not JSON: the request says so
    if not isinstance(config, Mapping) or not config.get("model"):
        return value
    draft = config["model"]
    entry = catalog.catalog_entry(draft) if isinstance(draft, str) and _NAME.fullmatch(draft) else None
    if entry is None:
        raise UnknownName("model of `speculative_config`", draft, catalog.names("models"))
    config = {**config, "model": model_name(str(draft))}
    return json.dumps(config) if isinstance(value, str) else config


def _texts(value: Any) -> Iterable[str]:
    """All texts of a value that came as JSON."""
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    yield from [value] if isinstance(value, str) else (text for part in inner for text in _texts(part))


def _gpu_changes(gpu: str, figures: Any) -> str:
    """``:memory=1e11,power=500``, or a comma first where the name already has some."""
    if not isinstance(figures, Mapping):
        raise BadValue(f'gpu_figures are figures by name such as {{"memory": 96e9}}, not {abbreviate(figures)}')
    for key, value in figures.items():
        sound = is_number(value) or (isinstance(value, str) and _FIGURE.fullmatch(value))
        if not _FIGURE.fullmatch(key) or not sound:
            raise BadValue(f"`gpu` takes figures such as memory=96e9, not {abbreviate(key)}: {abbreviate(value)}")
    pairs = ",".join(f"{key}={value}" for key, value in figures.items())
    return f"{',' if ':' in gpu else ':'}{pairs}" if pairs else ""


def file_name(name: str) -> str:
    """A name that can be a file's: ``file_name("../my model")  # 'my-model'``"""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "uploaded"


# ------------------------------------------------------------------ the same on the command line


def command(verb: str, plan: PagePlan, more: Mapping[str, Any] | None = None) -> str:
    """The line for a shell: ``command("analyze", plan)  # 'inferometer analyze llama-3.1-8b --gpu h200 …'``

    Before it stands a comment for each file that was uploaded, which the command looks for under its name.
    """
    line, known = ["inferometer", verb, plan.label], page_arguments()
    for name, value in {"gpu": plan.gpu, **plan.options, **(more or {})}.items():
        default = known[name].default if name in known and name not in _ALWAYS_SAID else None
        if value is None or (value == default and not (more or {}).get(name)):
            continue
        if isinstance(value, bool):
            line.append(flag(name) if value else flag(name).replace("--", "--no-", 1))
        else:
            line += [flag(name), _flag_value(name, value)]
    files = [plan.label] if plan.label.endswith("/config.json") else []
    files += [str(more["trace"])] if more and more.get("trace") else []
    return "".join(f"# save the uploaded file as {name}\n" for name in files) + shlex.join(line)


def _flag_value(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        separator = {"goodput": ":", "efficiency": "="}.get(name)
        if separator is None:
            return msgspec.json.encode(value).decode()
        return ",".join(f"{key}{separator}{inner}" for key, inner in value.items())
    if isinstance(value, list):
        separator = {"turns": ":", "images": "x"}.get(name, ",")
        inner = [separator.join(map(str, one)) if isinstance(one, list) else str(one) for one in value]
        return ("x" if name == "images" else ",").join(inner)
    return str(value)
