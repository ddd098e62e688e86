"""What the flags of a server's command are to a plan: understood, without effect here, not modelled, or unknown.

command = server_command("vllm serve Qwen/Qwen3-8B -tp 2 --enforce-eager --api-key x")
command.arguments        # {"engine": "vllm", "tensor_parallel_size": 2, "max_cudagraph_capture_size": 0}
command.flags[2].note    # 'the API only'

The tables of flags are data/flags; names of precisions are those of data/launch, from which `search` writes commands.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec

from ..base.errors import BadValue, InferometerError, abbreviate, nearest
from ..base.files import convert, user_path
from . import catalog
from .flag_values import (
    NOT_SET,
    converted,
    flags_document,
    is_true,
    json_object,
    trtllm_options,
    typed_flag,
    whole,
    wrong_value,
)
from .server_command import ServerLaunch, server_launch
from .structs import FlagUse, ServerCommand

NO_EFFECT, NOT_MODELLED, UNKNOWN = "no effect", "not modelled", "unknown"
_OWN_VARIABLES = ("VLLM_", "SGLANG_", "SGL_", "TRTLLM_", "NCCL_", "TLLM_")
_PLAIN = {"half": "fp16", "float16": "fp16", "bfloat16": "bf16", "float": "fp32", "float32": "fp32"}
_ALGORITHMS = {"NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram", "EAGLE3": "eagle3"}
_SPECULATION = ("method", "model", "num_speculative_tokens")
_SECRET = re.compile(r"api[-_]key|token$|password|secret", re.IGNORECASE)  # values that are never shown
_SWITCHES = {f"hicache_{name}": "enable_hierarchical_cache" for name in ("ratio", "size", "write_policy")}
_SWITCHES |= {"kv_offloading_backend": "kv_offloading_size"}
MOST_WORDS = 5000  # of a command
_LORA_RANK = 16  # of vLLM and SGLang, where LoRA is on and nothing else is said


class FlagTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of data/flags."""

    version: str
    source: str
    model_flags: list[str]
    arguments: dict[str, str]
    no_effect: dict[str, str]
    checkpoint_quantizations: list[str] = []  # what names the format of a checkpoint, which says it itself
    variables: dict[str, dict[str, str]] = {}  # of the environment: what they set where they are on
    flags: dict[str, dict[str, list[str]]]


class KnownFlag(NamedTuple):
    """A flag of an engine."""

    name: str  # the first of its names
    group: str
    values: str  # switches, one, several


@functools.cache
def flag_table(engine: str) -> FlagTable:
    """``flag_table("vllm").arguments["tensor-parallel-size"]  # 'tensor_parallel_size'``"""
    return convert(catalog.shipped("flags", engine), FlagTable, f"data/flags/{engine}.toml")


@functools.cache
def known_flags(engine: str) -> dict[str, KnownFlag]:
    """All names of all flags of an engine: ``known_flags("vllm")["-tp"].name  # '--tensor-parallel-size'``"""
    known: dict[str, KnownFlag] = {}
    for group, values in flag_table(engine).flags.items():
        for kind, lines in values.items():
            for line in lines:
                names = line.split()
                known |= {name: KnownFlag(names[0], group, kind) for name in names}
    return known


def server_command(text: str) -> ServerCommand:
    """The plan of a command, a Compose file or a manifest: ``server_command("trtllm-serve m --tp_size 4").model``"""
    return _Reading(server_launch(text)).command()


def own_flag(engine: str, argument: str) -> str:
    """How an engine spells an argument of a plan: ``own_flag("sglang", "max_num_seqs")  # '--max-running-requests'``"""
    known, table = known_flags(engine), flag_table(engine).arguments
    return next((f"--{name}" for name, ours in table.items() if ours == argument and f"--{name}" in known), "")


# ------------------------------------------------------------------ tokens to flags


class _Given(NamedTuple):
    typed: str
    known: KnownFlag | None
    values: list[str]
    off: bool = False  # --no-flag


def _given_flags(engine: str, tokens: list[str]) -> tuple[list[_Given], list[str]]:
    """The flags of a command with their values, and what belongs to none."""
    given: list[_Given] = []
    loose: list[str] = []
    at = 0
    while at < len(tokens):
        word = tokens[at]
        at += 1
        if not word.startswith("-") or _is_number(word):
            loose.append(word)
            continue
        typed, sign, value = word.partition("=")
        name, _, key = typed.partition(".")  # --compilation-config.cudagraph_mode
        known, off = _known(engine, name)
        takes = known.values if known else "one"
        values = [value] if sign else []
        most = 0 if sign or (takes == "switches" and not key) else 10**6 if takes == "several" else 1
        while len(values) < most and at < len(tokens) and (not tokens[at].startswith("-") or _is_number(tokens[at])):
            values.append(tokens[at])
            at += 1
        if key and values:
            values = [json.dumps({key: values[0]})]
        given.append(_Given(typed, known, values, off))
    return given, loose


def _known(engine: str, name: str) -> tuple[KnownFlag | None, bool]:
    """The flag of a name, also where it is cut short, has _ for -, or says no."""
    known = known_flags(engine)
    spellings = (name, name.replace("_", "-") if engine != "trtllm" else name)
    for spelling in spellings:
        if spelling in known:
            return known[spelling], False
        positive = "--" + spelling.removeprefix("--no-")
        if spelling.startswith("--no-") and positive in known and known[positive].values == "switches":
            return known[positive], True
    short = re.match(r"-O(\d)?$", name) if engine == "vllm" else None
    if short:
        return known["--optimization-level"], False
    begins = {flag.name: flag for key, flag in known.items() if key.startswith(spellings[1]) and name.startswith("--")}
    return (next(iter(begins.values())) if len(begins) == 1 and engine != "trtllm" else None), False


def _is_number(word: str) -> bool:
    return bool(re.fullmatch(r"-?\d[\d.]*([eE]-?\d+)?[kKmMgG]?", word))


# ------------------------------------------------------------------ flags to arguments


class _Reading:
    """One command: the flags that were read so far, and what they set."""

    def __init__(self, launch: ServerLaunch) -> None:
        self.launch, self.engine = launch, launch.engine
        self.table = flag_table(launch.engine)
        self.flags: list[FlagUse] = []
        self.set: dict[str, Any] = {}  # by argument
        self.raw: dict[str, Any] = {}  # by the engine's flag, of those that only make sense together
        self.speculation: dict[str, Any] = {}
        self.model = ""

    def command(self) -> ServerCommand:
        """Everything that the command says."""
        if len(self.launch.flags) > MOST_WORDS:
            raise BadValue(f"the command has more than {MOST_WORDS:,} words", field="model")
        given, loose = _given_flags(self.engine, self.launch.flags)
        for one in given:  # what is typed comes after what a file says, and wins
            if one.known is not None and one.known.name == "--config" and self.engine != "trtllm":
                self._flags_file(one)
        self.model = loose[0] if loose else self.model
        for one in given:
            if one.known is None or one.known.name != "--config" or self.engine == "trtllm":
                self._read(one)
        for word in loose[1:]:
            self.flags.append(FlagUse(flag=word, status=UNKNOWN, note="belongs to no flag"))
        if not self.model:
            needed = " or ".join(self.table.model_flags) or "the first word after trtllm-serve"
            raise BadValue(f"the command names no model: give it as {needed}", field="model")
        if "$" in self.model:
            raise BadValue(f"the command's model is {abbreviate(self.model)}, {NOT_SET}", field="model")
        self._local_model()
        self._quantization()
        try:
            self._speculation()
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise BadValue("the command's speculative decoding has a value that is no number", field="model") from None
        self._layout()
        self._environment()
        self._without_their_switch()
        version = self._version()
        engine = f"{self.engine}@{version}" if version else self.engine
        return ServerCommand(
            engine=self.engine,
            version=version,
            model=self.model,
            arguments={"engine": engine, **self.set},
            flags=self.flags,
        )

    def _without_their_switch(self) -> None:
        """Sizes of a CPU tier say nothing where it is off."""
        for name, switch in _SWITCHES.items():
            if switch not in self.set:
                self.set.pop(name, None)

    def _read(self, given: _Given) -> None:
        value = " ".join(given.values)
        use = FlagUse(flag=given.typed, value="…" if _SECRET.search(given.typed) else value)
        self.flags.append(use)
        if given.known is None:
            near = nearest(given.typed, known_flags(self.engine), 1)
            use.status, use.note = UNKNOWN, f"did you mean {near[0]}?" if near else "no flag of this engine"
            return
        name = given.known.name.lstrip("-")
        if given.known.name in self.table.model_flags or given.typed in self.table.model_flags:
            self.model, use.argument = value, "model"
            return
        self.read_setting(use, name, value if given.values else not given.off, given.known.group)

    def read_setting(self, use: FlagUse, name: str, value: Any, group: str = "") -> None:
        """One setting by the engine's name of it, of a flag or of a file."""
        argument = self.table.arguments.get(name)
        if argument is None:
            reason = self.table.no_effect.get(name) or self.table.no_effect.get(group)
            use.status, use.note = (NO_EFFECT, reason) if reason else (NOT_MODELLED, "")
            return
        use.argument = argument
        special: Callable[[FlagUse, Any], None] | None = getattr(self, f"_{name.replace('-', '_')}", None)
        special = special or getattr(self, f"_{argument}", None)
        try:
            if special is not None:
                special(use, value)
            else:
                self.set[argument] = converted(argument, value)
        except (ValueError, TypeError, AttributeError, OverflowError):
            raise BadValue(f"{use.flag} of the command {wrong_value(argument, value)}", field="model") from None

    # ---- values that have other names here

    def _dtype(self, use: FlagUse, value: str) -> None:
        if value != "auto":
            self.set["dtype"] = _PLAIN.get(value, value)

    def _kv_cache_dtype(self, use: FlagUse, value: str) -> None:
        names = {row["kv_cache_dtype"]: row["precision"] for row in self._launch_data()["kv_cache"]}
        if value == "auto":
            return
        if value not in names and not value.startswith("fp8") and value not in _PLAIN:
            use.status, use.note = NOT_MODELLED, "a format of the KV cache that is not estimated"
            return
        self.set["kv_cache_dtype"] = names.get(value) or _PLAIN.get(value) or "fp8"

    def _quantization(self, use: FlagUse | None = None, value: str = "") -> None:
        """Checked when the model is known: a checkpoint that is quantised says so itself."""
        if use is not None:
            self.raw["quantization"] = (use, value)
            return
        use, value = self.raw.get("quantization", (None, ""))
        if use is None:
            return
        online = {row.get("quantization", ""): row["precision"] for row in self._launch_data()["weights"]}
        entry = catalog.catalog_entry(self.model)
        quantised = entry is not None and (entry.quantization or entry.config.get("quantization_config"))
        if quantised or value in self.table.checkpoint_quantizations:
            use.status, use.note = NO_EFFECT, "the checkpoint says its own format"
        elif value in online:
            self.set["quantization"] = online[value]
        else:
            use.status, use.note = NOT_MODELLED, "weights are estimated as the checkpoint has them"

    def _launch_data(self) -> dict[str, Any]:
        return catalog.shipped("launch", self.engine)

    def _enable_prefix_caching(self, use: FlagUse, value: Any) -> None:
        self.set["enable_prefix_caching"] = is_true(value) != (use.flag.lstrip("-") == "disable-radix-cache")

    def _max_num_batched_tokens(self, use: FlagUse, value: Any) -> None:
        if str(value).startswith("-"):
            use.status, use.note = NOT_MODELLED, "prompts are estimated in chunks"
        else:
            self.set["max_num_batched_tokens"] = whole(value)

    def _max_model_len(self, use: FlagUse, value: Any) -> None:
        if str(value) in ("-1", "auto"):
            use.status, use.note = NO_EFFECT, "as long as fits"
        else:
            self.set["max_model_len"] = whole(value)

    def _moe_backend(self, use: FlagUse, value: Any) -> None:
        name = str(value).lower().replace("-", "_")
        if name in catalog.engine(self.engine).moe_backends:
            self.set["moe_backend"] = name
        elif name != "auto":
            use.status, use.note, use.argument = NOT_MODELLED, "the experts are taken as the engine chooses", ""

    # ---- CUDA graphs

    def _enforce_eager(self, use: FlagUse, value: Any) -> None:
        if is_true(value):
            self.set["max_cudagraph_capture_size"] = 0
            use.note = "no CUDA graphs"

    _disable_cuda_graph = _disable_decode_cuda_graph = _enforce_eager

    def _max_prefill_cudagraph_capture_size(self, use: FlagUse, value: Any) -> None:
        self.set["max_prefill_cudagraph_capture_size"] = 0 if value is True else whole(value)

    def _max_cudagraph_capture_size(self, use: FlagUse, value: Any) -> None:
        self.set["max_cudagraph_capture_size"] = max(map(whole, re.split(r"[\s,]+", str(value).strip("[] "))))

    def _compilation_config(self, use: FlagUse, value: Any) -> None:
        config = json_object(use.flag, value)
        sizes = config.get("cudagraph_capture_sizes")
        if str(config.get("cudagraph_mode", "")).upper() == "NONE" or str(config.get("mode", "")) == "0":
            self.set["max_cudagraph_capture_size"] = 0
        elif sizes or config.get("max_cudagraph_capture_size"):
            given = sizes if isinstance(sizes, list) and sizes else [sizes or config["max_cudagraph_capture_size"]]
            self.set["max_cudagraph_capture_size"] = max(map(whole, given))
        else:
            use.status, use.argument = NOT_MODELLED, ""

    def _cuda_graph_config(self, use: FlagUse, value: Any) -> None:
        if isinstance(value, dict) and (value.get("max_batch_size") or value.get("batch_sizes")):
            self.set["max_cudagraph_capture_size"] = int(
                value.get("max_batch_size") or max(map(int, value["batch_sizes"]))
            )
        elif value in (None, "null"):
            self.set["max_cudagraph_capture_size"] = 0
        else:
            use.status = NOT_MODELLED

    # ---- several flags that are one thing

    def _enable_lora(self, use: FlagUse, value: Any) -> None:
        if is_true(value):
            self.set.setdefault("lora_rank", _LORA_RANK)

    def _speculative_config(self, use: FlagUse, value: Any) -> None:
        name = use.flag.partition(".")[0].lstrip("-").replace("_", "-")
        keys = {"spec-method": "method", "spec-model": "model", "spec-tokens": "num_speculative_tokens"}
        if value is True:
            raise ValueError
        if name.startswith("speculative-") and name != "speculative-config":
            self.raw[name] = value
            return
        config = value if isinstance(value, dict) else json_object(use.flag, value) if name not in keys else {}
        config = config or {keys[name]: value}
        left = [key for key in config if key not in (*_SPECULATION, *_TRTLLM_SPECULATION)]
        use.note = f"not modelled: {', '.join(left)}" if left else ""
        self.speculation |= {key: item for key, item in config.items() if key not in left}

    def _speculation(self) -> None:
        """SGLang's and TensorRT-LLM's names for speculative decoding as vLLM's, which are ours."""
        raw = {key.removeprefix("speculative-"): value for key, value in self.raw.items()}
        config = self.speculation
        algorithm = str(raw.get("algorithm", "")).upper()
        if algorithm:
            draft = raw.get("draft-model-path", "")
            method = _ALGORITHMS.get(algorithm) or ("eagle" if draft else "mtp")
            count = int(raw["num-draft-tokens"]) - 1 if "num-draft-tokens" in raw else int(raw.get("num-steps", 1))
            config = {"method": method, "num_speculative_tokens": max(count, 1), **({"model": draft} if draft else {})}
        if "decoding_type" in config:
            kind = str(config["decoding_type"]).lower()
            method = {"draft_target": "draft_model"}.get(kind, kind)
            count = int(config.get("num_nextn_predict_layers") or config.get("max_draft_len") or 1)
            model = config.get("speculative_model") or config.get("speculative_model_dir")
            config = {"method": method, "num_speculative_tokens": count, **({"model": model} if model else {})}
        method = str(config.get("method", ""))
        if method.endswith("_mtp"):
            config["method"] = "mtp"
        if "num_speculative_tokens" in config:
            config["num_speculative_tokens"] = int(config["num_speculative_tokens"])
        if config:
            self.set["speculative_config"] = json.dumps(config)

    def _enable_dp_attention(self, use: FlagUse, value: Any) -> None:
        self.raw["attention_dp"] = use if is_true(value) else None

    _enable_attention_dp = _enable_dp_attention

    def _enable_expert_parallel(self, use: FlagUse, value: Any) -> None:
        """A switch in vLLM, a number of ranks or an all-to-all backend elsewhere."""
        on = value is True or (str(value).isdigit() and int(value) > 1) or str(value) in ("deepep", "mooncake", "nixl")
        if on:
            self.set["enable_expert_parallel"] = True
        elif value is not False:
            use.status = NO_EFFECT if str(value) in ("1", "none") else NOT_MODELLED
            use.note = "experts stay tensor-parallel"

    def _layout(self) -> None:
        """Attention that is data-parallel over the ranks that `tp` counts: SGLang's and TensorRT-LLM's."""
        use, tp, dp = (
            self.raw.get("attention_dp"),
            self.set.get("tensor_parallel_size", 1),
            self.set.get("data_parallel_size", 1),
        )
        if use is None:
            return
        dp = tp if self.engine == "trtllm" else dp
        if dp < 2:
            use.status, use.note = NO_EFFECT, "one data-parallel rank: --dp-size is 1"
            return
        if tp % dp:
            raise BadValue(f"{use.flag} needs a tensor-parallel size that {dp} divides, not {tp}", field="model")
        self.set |= {"tensor_parallel_size": tp // dp, "data_parallel_size": dp}
        use.note = f"attention on {dp} data-parallel ranks of {tp // dp}"
        if not self.set.get("enable_expert_parallel"):
            self.set["enable_expert_parallel"] = True
            use.note += "; experts, which are tensor-parallel, are estimated as expert-parallel"
        if self.engine == "sglang":  # its limits are of all ranks together
            for name in ("max_num_batched_tokens", "max_num_seqs"):
                self.set |= {name: max(1, self.set[name] // dp)} if name in self.set else {}

    def _extra_llm_api_options(self, use: FlagUse, value: Any) -> None:
        """TensorRT-LLM's file of options, if it is here."""
        use.argument = ""
        document = flags_document(str(value))
        if document is None:
            use.status, use.note = NOT_MODELLED, "the file cannot be read here, so its options are left out"
            return
        for name, setting in trtllm_options(document):
            one = FlagUse(flag=f"{os.path.basename(str(value))}: {name}", value=json.dumps(setting))
            self.flags.append(one)
            self.read_setting(one, name, setting)

    def _flags_file(self, given: _Given) -> None:
        """The flags in the YAML file of ``--config``, if it is here."""
        path = " ".join(given.values)
        use = FlagUse(flag=given.typed, value=path)
        self.flags.append(use)
        document = flags_document(path)
        if document is None:
            use.status, use.note = NOT_MODELLED, "the file cannot be read here, so its flags are left out"
            return
        use.note = "its flags are below"
        typed = [token for key, item in document.items() for token in typed_flag(key, item)]
        for one in _given_flags(self.engine, typed)[0]:
            self._read(one)

    # ---- the rest

    def _local_model(self) -> None:
        """A folder of the server's machine is, here, the model of that name in the catalogue."""
        here = self.model
        if here.startswith(("/", "./", "~")) and not user_path(here).exists():
            name = here.rstrip("/").rpartition("/")[2]
            if catalog.catalog_entry(name) is not None:
                self.model = name
                self.flags.append(FlagUse(flag="MODEL", value=here, argument="model", note=f"taken as {name}"))

    def _environment(self) -> None:
        for name, value in self.launch.environment.items():
            if not name.startswith(_OWN_VARIABLES):
                continue
            use = FlagUse(flag=name, value="…" if _SECRET.search(name) else value, note="an environment variable")
            self.flags.append(use)
            sets = self.table.variables.get(name)
            if sets is None:
                use.status = NOT_MODELLED
            elif is_true(value):
                use.argument = next(iter(sets))
                self.set |= sets

    def _version(self) -> str:
        """The image's version if its defaults are known, else the nearest that is."""
        given = self.launch.version
        if not given:
            return ""
        try:
            return catalog.engine(f"{self.engine}@{given}").version
        except InferometerError:
            known = catalog.engine(self.engine).versions
            newest = _numbers(given) > _numbers(known[-1])
            version = known[-1] if newest else known[0]
            note = f"its defaults are not known; those of {version} are taken"
            self.flags.append(FlagUse(flag="image", value=given, status=NOT_MODELLED, note=note))
            return version


_TRTLLM_SPECULATION = (
    "decoding_type",
    "max_draft_len",
    "num_nextn_predict_layers",
    "speculative_model",
    "speculative_model_dir",
)


def _numbers(version: str) -> list[int]:
    return [int(piece) for piece in re.findall(r"\d{1,9}", version)]
