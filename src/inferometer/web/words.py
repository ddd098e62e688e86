"""The words of a plan as a page sends them: which it may say, which control a sentence is about, and the command line.

A page speaks for whoever opened it, so it names what the catalogue has: no files of this machine, and nothing that
would have to be fetched from another one.
"""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue, UnknownName, abbreviate, is_number
from ..base.ranges import as_list
from ..inference.request import build_request
from ..specs import catalog

MODEL = "llama-3.1-8b"  # of a plan that does not name one
_ELSEWHERE = {"profile", "calibration", "hf_token"}  # files and secrets of this machine
_REQUEST = inspect.signature(build_request).parameters
WORDS = tuple(name for name in _REQUEST if name not in _ELSEWHERE)
OWN = ("config", "gpu_figures")  # words of a plan that the command line says otherwise
_FIGURE = re.compile(r"[A-Za-z0-9_.-]{1,80}")


class Plan(NamedTuple):
    """A plan that names only what is known: ``model`` may be the path of a config.json that was sent with it."""

    model: str
    gpu: str
    words: dict[str, Any]
    label: str  # what people call the model


def plan_of(given: Any, folder: Path) -> Plan:
    """Check a plan; a config.json that came with it is put into the folder: ``plan_of({"gpu": "h200"}, folder)``"""
    if not isinstance(given, Mapping):
        raise BadValue(f'a plan is an object such as {{"model": "{MODEL}", "gpu": "h200"}}, not {abbreviate(given)}')
    words = {name: value for name, value in given.items() if value is not None}
    for name in words:
        if name not in (*WORDS, *OWN):
            raise UnknownName("word of a plan", name, (*WORDS, *OWN))
    config, figures = words.pop("config", None), words.pop("gpu_figures", {})
    model, gpu = words.pop("model", MODEL), words.pop("gpu", _REQUEST["gpu"].default)
    known({"model": [] if config is not None else model, "gpu": gpu, **words})
    if not isinstance(model, str):
        raise BadValue(f"the model must be a name, not {abbreviate(model)}")
    if config is None:
        return Plan(model, f"{gpu}{_changes(gpu, figures)}", words, model)
    if not isinstance(config, Mapping):
        raise BadValue(f"a config.json is an object, not {abbreviate(config)}")
    label = safe(model.rpartition("/")[2] if model != MODEL else "uploaded")
    path = folder / label / "config.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.encode(config))
    return Plan(str(path), f"{gpu}{_changes(gpu, figures)}", words, label)


def known(words: Mapping[str, Any]) -> None:
    """Refuse names that the catalogue has not; values may be lists of names, as axes are."""
    for name, value in words.items():
        for text in _texts(value):
            if any(ord(letter) < 32 for letter in text):
                raise BadValue(f"--{name.replace('_', '-')} has a letter that cannot be printed: {abbreviate(text)}")
    for model in _names(words.get("model"), lambda text: text.split(",")):
        if catalog.catalog_entry(model) is None:
            raise UnknownName("model", model, catalog.names("models"), "(or give its config.json)")
    for gpu in _names(words.get("gpu"), catalog.gpu_names):
        name = gpu.partition(":")[0].strip()
        if catalog.registered_name("hardware", name) is None:
            raise UnknownName("GPU", name, catalog.names("hardware"))
    for engine in _names(words.get("engine"), lambda text: text.split(",")):
        if catalog.registered_name("engines", engine) is None:
            raise UnknownName("engine", engine, catalog.names("engines"))
    for draft in _drafts(words.get("speculative_config")):
        if catalog.catalog_entry(draft) is None:
            raise UnknownName("model of --speculative-config", draft, catalog.names("models"))


def _names(value: Any, split: Any) -> Iterable[str]:
    """Every name of a value: one, several with commas between, or a list of such."""
    for item in as_list(value) if value is not None else []:
        if not isinstance(item, str):
            raise BadValue(f"a name must be text, not {abbreviate(item)}")
        yield from (name.strip() for name in split(item))


def _drafts(value: Any) -> Iterable[str]:
    """The models that speculative decoding would draft with."""
    for item in as_list(value) if not isinstance(value, Mapping) else [value]:
        if isinstance(item, str):
            try:
                item = msgspec.json.decode(item)
            except (msgspec.DecodeError, RecursionError):
                continue  # not JSON: the request says so
        if isinstance(item, Mapping) and item.get("model"):
            yield str(item["model"])


def _texts(value: Any) -> Iterable[str]:
    """All texts of a value that came as JSON."""
    inner = [*value, *value.values()] if isinstance(value, Mapping) else value if isinstance(value, list) else []
    yield from [value] if isinstance(value, str) else (text for part in inner for text in _texts(part))


def _changes(gpu: str, figures: Any) -> str:
    """``:memory=1e11,power=500``, or a comma first where the name already has some."""
    if not isinstance(figures, Mapping):
        raise BadValue(f'gpu_figures are figures by name such as {{"memory": 96e9}}, not {abbreviate(figures)}')
    for key, value in figures.items():
        if not _FIGURE.fullmatch(key) or not (
            is_number(value) or (isinstance(value, str) and _FIGURE.fullmatch(value))
        ):
            raise BadValue(f"--gpu takes figures such as memory=96e9, not {abbreviate(key)}: {abbreviate(value)}")
    pairs = ",".join(f"{key}={value}" for key, value in figures.items())
    return f"{',' if ':' in gpu else ':'}{pairs}" if pairs else ""


def safe(name: str) -> str:
    """A name that can be a file's: ``safe("../my model")  # 'my-model'``"""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:80] or "uploaded"


# ------------------------------------------------------------------ the same on the command line


def command(verb: str, plan: Plan, more: Mapping[str, Any] | None = None) -> str:
    """The line for a shell: ``command("analyze", plan)  # 'inferometer analyze llama-3.1-8b --gpu h200 …'``"""
    model = plan.model if plan.label == plan.model else f"{plan.label}/config.json"
    found = ["inferometer", verb, model]
    for name, value in {"gpu": plan.gpu, **plan.words, **(more or {})}.items():
        default = _REQUEST[name].default if name in _REQUEST else None
        if value is None or (value == default and not (more or {}).get(name)):
            continue
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            found.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            found += [flag, _shown(name, value)]
    return shlex.join(found)


def _shown(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = {"goodput": ":", "efficiency": "="}.get(name)
        return ",".join(f"{k}{pairs}{v}" for k, v in value.items()) if pairs else msgspec.json.encode(value).decode()
    if isinstance(value, list):
        pairs = {"turns": ":", "images": "x"}.get(name, ",")
        inner = [pairs.join(map(str, one)) if isinstance(one, list) else str(one) for one in value]
        return ("x" if name == "images" else ",").join(inner)
    return str(value)


# ------------------------------------------------------------------ whose mistake it is

_ABOUT = {
    "unknown GPU": "gpu",
    "unknown figure of": "gpu",
    "hardware ": "gpu",
    "unknown interconnect of": "gpu",
    "unknown model of --spec": "speculative_config",
    "unknown model": "model",
    "the model": "model",
    "unknown engine": "engine",
    "unknown quantization": "quantization",
    "unknown use case": "usecase",
    "unknown dtype": "dtype",
    "unknown efficiency": "efficiency",
    "unknown LoRA": "lora_targets",
    "unknown speculative": "speculative_config",
    "acceptance_": "speculative_config",
    "a config.json": "model",
    "num_speculative_tokens": "speculative_config",
    "method ": "speculative_config",
    "per-layer": "input_len",
}


def concerns(sentence: str) -> str | None:
    """The control that a sentence is about: ``concerns("--batch-size must be …")  # 'batch_size'``"""
    for start, name in _ABOUT.items():
        if sentence.startswith(start):
            return name
    for flag in re.findall(r"--([a-z][a-z0-9-]+)", sentence):
        if flag.replace("-", "_") in _REQUEST:
            return str(flag.replace("-", "_"))
    return "model" if "config.json" in sentence else None
