"""From a name to a spec: hardware, engines, precisions, use cases and models. Shipped data is read here.

The file name is the registration: ``data/hardware/h200.toml`` is the GPU ``h200``.
"""

from __future__ import annotations

import copy
import functools
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ..base.errors import BadFile, BadValue, UnknownName, abbreviate, about, check_int, nearest
from ..base.extras import require_library
from ..base.files import convert, input_path, note_file, read_json, read_toml, settled, user_path
from ..base.input_file import PACKED, file_stem, is_input, read_text
from .engine_rules import check_rules, choose_version
from .structs import MEMORY_KINDS, AgentProfile, Engine, Hardware, Link, Precision, Usecase

DATA = Path(__file__).parent.parent / "data"
S = TypeVar("S")
NOT_JOINING = frozenset({"network", "host", "c2c"})  # links that join machines, or a device and its host
TINY = 1e8  # no device has so few bytes, bytes/s or FLOP/s: a smaller figure is one in GB or TFLOP/s


def normalized(name: str) -> str:
    """How names are compared: ``normalized("RTX4090_GPU")  # 'rtx4090-gpu'``"""
    return re.sub(r"[\s_/]+", "-", str(name).strip().lower())


def constants(name: str, kind: type[S]) -> S:
    """A table of constants that comes with the package: ``constants("collectives", CollectiveConstants)``"""
    return convert(read_toml(DATA / f"{name}.toml"), kind, name)


def names(folder: str) -> list[str]:
    """The names that a folder of data registers: ``names("engines")  # ['hf', 'roofline', …]``"""
    return sorted(p.stem for p in (DATA / folder).glob("*.toml"))


@functools.cache
def _aliases(folder: str) -> dict[str, str]:
    """Alias (or Hugging Face id) -> registered name, from the top of every file of a folder; no alias means two."""
    stems: dict[str, str] = {}
    for path in sorted((DATA / folder).glob("*.toml")):
        top = re.split(r"^\[", path.read_text(encoding="utf-8"), maxsplit=1, flags=re.M)[0]
        lists = "".join(re.findall(r"^(?:aliases|ids) = \[([^]]*)\]", top, re.M))  # six times as fast as a TOML reader
        for alias in (path.stem, *re.findall(r'"([^"]+)"', lists)):
            if stems.setdefault(normalized(alias), path.stem) != path.stem:
                raise BadFile(f"{path}: {alias!r} is a name of {stems[normalized(alias)]} already")
    return stems


def registered_name(folder: str, name: str) -> str | None:
    """The registered name that a name or alias means, or None."""
    key = normalized(name)
    if len(key) < 100 and (DATA / folder / f"{key}.toml").exists():
        return key
    return _aliases(folder).get(key)


_fields, _parsed = functools.cache(msgspec.structs.fields), functools.lru_cache(256)(read_toml)  # needed often


def shipped(folder: str, name: str) -> dict[str, Any]:
    """A file of the catalogue, as a copy that may be changed: ``shipped("hosts", "server")["launch"]``"""
    return copy.deepcopy(_parsed(DATA / folder / f"{name}.toml"))


# ------------------------------------------------------------------ hardware


@about("gpu")
def hardware(text: str) -> Hardware:
    """A name, a TOML file, or either with figures of your own: ``hardware("h100-sxm:memory_bandwidth=4e12")``"""
    name, _, overrides = str(text).strip().partition(":")
    if name.endswith((".toml", *PACKED)) or os.sep in name or name == "-":
        path = input_path(name)
        if not is_input(path):
            raise BadFile(f"no hardware file {abbreviate(name)}")
        data, title = read_toml(path), file_stem(path)
    else:
        registered = registered_name("hardware", name)
        if registered is None:
            beside = f"(or its file, ./{name}.toml)" if os.path.isfile(f"{name}.toml") else ""
            raise UnknownName("GPU", name, names("hardware"), beside, field="gpu")
        data, title = shipped("hardware", registered), registered
    for assignment in filter(None, overrides.split(",")):
        _override(data, assignment, title)
    links = data.get("links")
    joining = [link for link in links if link not in NOT_JOINING] if isinstance(links, dict) else []
    if len(joining) == 1:  # a device's only link joins it to others, whatever its name
        data.setdefault("interconnect", joining[0])
    return _checked(convert({**data, "name": title}, Hardware, f"hardware {title}"))


def gpu_names(text: str) -> list[str]:
    """A list of GPUs; a figure after a comma belongs to the GPU before: ``gpu_names("a100,h200:power=1,memory=2")``"""
    gpus: list[str] = []
    for entry in text.split(","):
        if gpus and "=" in entry and ":" not in entry:
            gpus[-1] += "," + entry
        elif entry.strip():
            gpus.append(entry.strip())
    if not gpus:
        raise BadValue("`gpu` needs at least one name")
    return gpus


def _override(data: dict[str, Any], assignment: str, title: str) -> None:
    """Put a figure of the user's into a device's data: ``_override(data, "links.nvlink.bandwidth=9e11", "h200")``"""
    key, _, value = assignment.partition("=")
    *path, last = key.strip().split(".")
    table: Any = data
    for step in path:
        table = table.get(step) if isinstance(table, dict) else None
    figures = {k for k, v in dotted(data).items() if isinstance(v, int | float)} | {"interconnect"}
    figures |= {f.name for f in _fields(Hardware) if f.type in (int, float)}
    figures |= {f"flops.{number_format}" for p in precisions().values() for number_format in p.compute}
    figures |= {f"links.{k}.{f.name}" for k in data.get("links", ()) for f in _fields(Link)}
    if not isinstance(table, dict) or key.strip() not in figures:
        raise UnknownName(f"figure of {title}", key, figures, field="gpu")
    if last == "interconnect":
        table[last] = value.strip()
    elif last == "peer_to_peer":
        if value.strip().lower() not in ("true", "false"):
            raise BadValue(f"`gpu` {title}:{key} must be true or false, not {value!r}")
        table[last] = value.strip().lower() == "true"
    else:
        try:
            number = float(value)
        except ValueError:
            raise BadValue(f"`gpu` {title}:{key} must be a number, not {value!r}") from None
        counted = last in ("compute_units", "gpus_per_node", "devices", "peers", "wraparound")
        table[last] = check_int(f"`gpu` {title}:{key}", number, least=0) if counted else number
    data.setdefault("source", {})[key] = "given by you"


def dotted(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Nested tables as dotted keys: ``dotted({"flops": {"bf16": 1}})  # {"flops.bf16": 1}``; tables in a list count."""
    flat: dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, list | tuple) and value and isinstance(value[0], Mapping):
            value = {str(number): table for number, table in enumerate(value, start=1)}
        flat |= dotted(value, f"{before}{key}.") if isinstance(value, Mapping) else {f"{before}{key}": value}
    return flat


def _checked(device: Hardware) -> Hardware:
    """The device itself; figures that cannot be in SI units, or that contradict each other, are refused."""
    figures = {"memory": device.memory, "memory_bandwidth": device.memory_bandwidth, **dotted({"flops": device.flops})}
    figures |= {f"links.{k}.bandwidth": v.bandwidth for k, v in device.links.items()}
    for key, value in figures.items():
        if not 1 <= value < 1e21:  # a rate below 1 byte/s is no rate, and its times leave the range of numbers
            raise BadValue(f"hardware {device.name}: {key} must be a positive number in SI units, not {value:g}")
        if value < TINY and not key.startswith("links"):
            unit = {"memory": "bytes: 80 GB is 80e9", "memory_bandwidth": "bytes/s: 3.35 TB/s is 3.35e12"}.get(key)
            raise BadValue(
                f"hardware {device.name}: {key} cannot be as small as {value:g}: figures are in SI units, "
                f"here {unit or 'FLOP/s: 989 TFLOP/s is 989e12'}"
            )
    small = ("cache", "clock", "power", "reach_flops", "reach_memory", "throttle", "throttle_memory")
    positive = ("throttle_after", "throttle_decode")
    others = {k: getattr(device, k) for k in (*small, *positive, "compute_units", "price_per_hour")}
    others |= {f"links.{k}.latency": v.latency for k, v in device.links.items()}
    for key, value in others.items():
        if not 0 <= value < 1e21 or (value < 1e-3 and (key in positive or (value and key in small))):
            allowed = "a positive number" if key in positive else "zero or more"
            raise BadValue(f"hardware {device.name}: {key} must be {allowed}, in SI units, not {value:g}")
        if value > 10 and key.startswith("throttle"):
            raise BadValue(f"hardware {device.name}: {key} is a share, or seconds: at most 10, not {value:g}")
    check_int(f"hardware {device.name}: gpus_per_node", device.gpus_per_node)
    for key, link in device.links.items():
        for count, least in (("devices", 1), ("peers", 0), ("wraparound", 0)):
            check_int(f"hardware {device.name}: links.{key}.{count}", getattr(link, count), least=least)
    joining = device.links.keys() - NOT_JOINING
    if device.interconnect not in device.links and (joining or device.interconnect != "pcie"):
        raise UnknownName(f"interconnect of hardware {device.name}", device.interconnect, device.links)
    if device.memory_kind and device.memory_kind not in MEMORY_KINDS:
        raise UnknownName(f"memory_kind of hardware {device.name}", device.memory_kind, MEMORY_KINDS)
    if not device.flops:
        raise BadValue(f"hardware {device.name}: flops needs at least one number format, such as bf16")
    return device


# ------------------------------------------------------------------ engines, precisions, use cases


@about("engine")
def engine(text: str) -> Engine:
    """``engine("vllm")`` at its newest checked version, ``engine("vllm@0.15")``, or the path of a TOML file.

    A file that says ``like = "vllm"`` has only what differs. Defaults that depend on the device are still rules:
    `engine_rules.resolve` applies them.
    """
    name, version = engine_name(text)
    if name.endswith(".toml") or name.startswith("/") or name == "-":
        path = input_path(name)
        if not is_input(path):
            raise BadFile(f"no engine file {abbreviate(name)}")
        return choose_version(_checked_engine(read_toml(path), file_stem(path)), version)
    registered = registered_name("engines", name)
    if registered is None:
        raise UnknownName("engine", name, names("engines"), field="engine")
    return _shipped_engine(registered, version)


@functools.lru_cache(64)
def _shipped_engine(name: str, version: str) -> Engine:
    return choose_version(_checked_engine(shipped("engines", name), name), version)


def _checked_engine(data: dict[str, Any], title: str) -> Engine:
    where = f"engine {title}"
    return check_rules(convert({**_inherited(data, title), "name": title}, Engine, where), where)


def engine_name(text: str) -> tuple[str, str]:
    """Name or path, and the version after an @: ``engine_name("vllm@0.15")  # ('vllm', '0.15')``"""
    text = str(text).strip()
    name, _, version = text.rpartition("@")
    return (name, version) if name and not text.endswith(".toml") else (text, "")


def _inherited(data: dict[str, Any], title: str) -> dict[str, Any]:
    """An engine's figures over those of the engine that it is ``like``."""
    other = data.pop("like", None)
    if other is None:
        return data
    if not isinstance(other, str) or registered_name("engines", other) in (None, title):
        raise UnknownName(
            "engine to be like", str(other), [name for name in names("engines") if name != title], field="engine"
        )
    base = _inherited(shipped("engines", str(registered_name("engines", other))), str(other))
    if "versions" in data:  # an engine of its own: what it is like says nothing of its defaults
        base.pop("when", None)
    else:  # a file's own figures stand over the rules that it inherits
        inherited = base.get("when", ())
        rules = [{**rule, "set": {k: v for k, v in rule["set"].items() if k not in data}} for rule in inherited]
        data = {**data, "when": [*rules, *data.get("when", ())]}
    tables = {key: {**base[key], **value} for key, value in data.items() if isinstance(value, dict) and key in base}
    return {**base, **data, **tables}


def _table(file: str, kind: type[S], what: str) -> Callable[[], dict[str, S]]:
    @functools.cache
    def load() -> dict[str, S]:
        data = read_toml(DATA / file)
        return {k: convert({**v, "name": k}, kind, f"{what} {k}") for k, v in data.items()}

    return load


precisions = _table("precisions.toml", Precision, "precision")
usecases = _table("usecases.toml", Usecase, "use case")
agents = _table("agents.toml", AgentProfile, "agent")


@functools.cache
def acceptance() -> dict[tuple[str, str], dict[str, float]]:
    """Measured tokens per step of speculative decoding: (model, method) -> number of drafted tokens -> tokens."""
    return {(name, row["method"]): dict(row["length"]) for name, row in read_toml(DATA / "acceptance.toml").items()}


_SYNONYMS = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
_SYNONYMS |= {"fp8-e4m3": "fp8", "fp8-e5m2": "fp8", "awq": "w4a16", "gptq": "w4a16", "w8a8": "int8", "fp4": "nvfp4"}


def precision(text: str, what: str = "precision") -> Precision:
    """``precision("w4a16")``; takes vLLM's names too (``bfloat16``, ``awq``)."""
    return _precision(str(text), what)


@functools.cache
def _precision(text: str, what: str) -> Precision:
    key = normalized(text)
    entry = precisions().get(_SYNONYMS.get(key, key))
    if entry is None:
        raise UnknownName(what, text, precisions(), field=what if what.isidentifier() else "")
    return entry


UNQUANTIZED = ("bf16", "fp16", "fp32")
KV_CACHE_FORMATS = (*UNQUANTIZED, "fp8", "int8", "int4")  # what a cache can be kept in


def plain_dtype(text: str, what: str = "dtype", allowed: tuple[str, ...] = UNQUANTIZED) -> str:
    """A number format without groups or scales: ``plain_dtype("bfloat16")  # 'bf16'``"""
    dtype = _SYNONYMS.get(normalized(text), normalized(text))
    if dtype not in allowed:
        field = what if what.isidentifier() else ""
        raise UnknownName(what, text, allowed, "(weight formats are set with -q)", field=field)
    return dtype


@about("usecase")
def usecase(text: str) -> Usecase:
    """``usecase("chatbot")``: typical lengths and what users expect."""
    entry = usecases().get(normalized(text))
    if entry is None:
        raise UnknownName("use case", text, usecases(), field="usecase")
    return entry


# ------------------------------------------------------------------ models

_TUNED = re.compile(r"-(instruct|hf|chat|it|base|dynamic|static|pertensor|per-tensor|thinking|v0\.\d-hf)(?=-|$)")
_UNSPECIFIC = ({"fp8", "fp8-block"}, {"w4a16", "int4", "int4-g32"})  # a name does not say which of these it means


def is_declared(quantization: str, declared: Iterable[str]) -> bool:
    """Whether a config declares a name's precision, or a finer one: ``is_declared("fp8", ["fp8-block"])  # True``"""
    family = next((family for family in _UNSPECIFIC if quantization in family), {quantization})
    return any(precision in family for precision in declared)


class ModelEntry(msgspec.Struct, frozen=True):
    """A model of a name: its config and, if its name says so, its quantisation."""

    name: str
    config: dict[str, Any]
    source: str
    quantization: str = ""
    network: bool = False  # a TOML description of blocks rather than a config.json
    hf_id: str = ""  # its repository on Hugging Face; empty if it has none


@about("model")
def model(text: str, token: str | None = None, *, assume_decoder: bool = False) -> ModelEntry:
    """A catalogue name, a Hugging Face id, or the path of a config.json, its folder or a network's TOML file.

    ``token`` is for gated repositories of Hugging Face; without it, the variable HF_TOKEN of the environment. A name of
    an embedding, speech or encoder model is refused unless ``assume_decoder``.
    """
    name = str(text).strip()
    if not name:
        raise BadValue("the model's name is empty")
    if name.startswith((".", "/", "~")) or name.endswith((".json", ".toml", *PACKED)) or name == "-":
        return _from_file(input_path(name))
    entry = catalog_entry(name)
    if entry is not None:
        return entry
    if not assume_decoder:
        _refuse_other_kinds(name)
    path = user_path(name)
    if path.is_dir():
        return _from_file(path)
    if name.count("/") == 1:
        return _download(name, token)
    hint = "(or give a Hugging Face id or the path of a config.json)"
    raise UnknownName("model", name, names("models"), hint, field="model")


def _refuse_other_kinds(name: str) -> None:
    """Whether a name is that of a model that does not answer token by token: known before anything is fetched."""
    last = name.rpartition("/")[2].lower()
    for kind in read_toml(DATA / "not_decoders.toml")["models"]:
        if re.fullmatch(kind["pattern"], last):
            anyway = "`assume_decoder` treats it as a Llama-like decoder"
            raise BadValue(f"{abbreviate(name)} is {kind['what']}; {anyway}", field="model")


def catalog_entry(text: str) -> ModelEntry | None:
    """The catalogue's entry for a name or an id, tuned and quantised variants included; None if there is none."""
    key, hf_id = normalized(text), "" if " " in text.strip() else text  # an id has no spaces: half a command is none
    for candidate in (key, key.partition("-")[2] if "/" in hf_id else key, normalized(hf_id.rpartition("/")[2])):
        for name, quantization in _variants(candidate):
            stem = registered_name("models", name)
            if stem is not None:
                return _entry(stem, quantization)
    return None


@functools.lru_cache(256)
def _entry(stem: str, quantization: str) -> ModelEntry:
    """One object per entry, so that what is built from it can be cached by identity."""
    data = _model_data(stem)
    config, declared = data["config"], data.get("quantizations", {}).get(quantization)
    if declared is not None:
        config = {**config, "quantization_config": declared}
    return ModelEntry(stem, config, data.get("source", ""), quantization, hf_id=data.get("hf_id", ""))


def _model_data(stem: str) -> dict[str, Any]:
    """A file of the catalogue; one that says ``like = "qwen3-4b"`` has only the keys of its config that differ."""
    data = shipped("models", stem)
    other = data.get("like")
    if other is None:
        return data
    if other == stem or not (DATA / "models" / f"{other}.toml").exists():
        raise UnknownName(f"model that {stem} is like", str(other), names("models"), field="model")
    base = _model_data(other)
    tables = {key: _merged(base.get(key, {}), data.get(key, {})) for key in ("config", "quantizations")}
    return {**data, **tables}


def _merged(base: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """A table over another, nested ones too: ``_merged({"a": {"b": 1, "c": 2}}, {"a": {"c": 3}})``"""
    tables = {k: _merged(base[k], v) for k, v in own.items() if isinstance(v, dict) and isinstance(base.get(k), dict)}
    return {**base, **own, **tables}


def _variants(key: str) -> Iterable[tuple[str, str]]:
    """The name itself, then without its suffixes of tuning and quantisation."""
    yield key, ""
    bare = _TUNED.sub("", key)
    yield bare, ""
    for suffix, meaning in _suffixes().items():
        for longer in (key, bare):
            shorter = re.sub(rf"-{suffix}(?=-|$)", "", longer)
            if shorter != longer:
                yield shorter, meaning
                yield _TUNED.sub("", shorter), meaning


def named_precision(name: str) -> str:
    """The quantisation that a repository's or folder's name declares: ``named_precision("X-NVFP4")  # 'nvfp4'``"""
    parts = f"-{normalized(name)}-"
    return next((meaning for suffix, meaning in _suffixes().items() if f"-{suffix}-" in parts), "")


@functools.cache
def _suffixes() -> dict[str, str]:
    """What the names of quantised checkpoints end in -> the precision; the longest first: gptq-int8 is not int8."""
    ends = {suffix: precision.name for precision in precisions().values() for suffix in precision.suffixes}
    return dict(sorted(ends.items(), key=lambda pair: -len(pair[0])))


def _from_file(path: Path) -> ModelEntry:
    target = path / "config.json" if path.is_dir() else path
    if not is_input(target):
        if path.is_dir():
            raise BadFile(f"{path} is a folder without a config.json")
        raise BadFile(f"no such file: {path}")
    name = file_stem(target)
    if target.suffix == ".toml" or (target.suffix != ".json" and not read_text(target).lstrip().startswith("{")):
        data = read_toml(target)
        if isinstance(data.get("config"), dict):
            return ModelEntry(name, data["config"], str(data.get("source", target)))
        return ModelEntry(name, data, str(target), network=True)
    name = target.parent.resolve().name if target.name == "config.json" else name
    config = read_json(target)
    return ModelEntry(name, config, str(target), _named_quantization(name, config))


def _named_quantization(name: str, config: Mapping[str, Any]) -> str:
    """The precision that a repository's name declares, unless its config does."""
    inner = (config.get(key) for key in ("text_config", "llm_config", "language_config"))
    sections = [config, *(part for part in inner if isinstance(part, Mapping))]
    declares = any(part.get(key) for part in sections for key in ("quantization_config", "compression_config"))
    return "" if declares else named_precision(name)


def _download(repo: str, token: str | None) -> ModelEntry:
    """The config.json of a repository that the catalogue does not have; offline, from the local cache."""
    if repo in settled:
        return _from_repository(repo, settled[repo])
    near = nearest(repo.rpartition("/")[2].lower(), names("models"))
    hint = f"; the nearest entries are {' and '.join(near)}" if near else ""
    require_library(f"{repo!r} is not in the catalogue; fetching it", "huggingface_hub", otherwise=hint)
    from huggingface_hub import constants, hf_hub_download, logging

    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    offline = not _reachable(constants.ENDPOINT)
    try:
        path = hf_hub_download(repo, "config.json", token=token or os.environ.get("HF_TOKEN"), local_files_only=offline)
    except Exception as error:  # the library raises many kinds: not there, gated, malformed, cut off
        why = "there is no network connection" if offline else f"{type(error).__name__}"
        raise BadFile(
            f"{repo!r} is not in the catalogue and its config.json could not be fetched ({why}){hint}"
        ) from None
    note_file(repo, Path(path))
    return _from_repository(repo, Path(path))


def _from_repository(repo: str, path: Path) -> ModelEntry:
    config = read_json(path)
    return ModelEntry(repo.rpartition("/")[2].lower(), config, repo, _named_quantization(repo, config))


def _reachable(url: str) -> bool:
    """Whether the host's name resolves: tried first, because the library retries for half a minute."""
    import socket
    from urllib.parse import urlsplit

    try:
        socket.getaddrinfo(urlsplit(url).hostname, 443)
    except (OSError, UnicodeError):
        return False
    return True


def accuracy(file: str = "accuracy") -> dict[str, Any]:
    """Predicted beside measured: tables and points; ``accuracy("expected_errors")``: bands by class."""
    return read_json(DATA / f"{file}.json")
