"""A Hugging Face model to measure: built from its config with random weights, or from a folder that has real ones."""

from __future__ import annotations

import copy
import gc
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..base.errors import BadFile, BadValue, UnknownName, abbreviate
from ..base.extras import load_library, require_library
from ..specs import catalog

_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
_PER_LAYER = ("layer_types", "layers_block_type")  # say how many layers there are where nothing else does
_SECTIONS = ("text_config", "llm_config", "language_config")
_QUANTISED = ("quantization_config", "compression_config")
_WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
_SAME = {"kimi_k2": "deepseek_v3"}  # types that differ by name alone
_APART = ("opt",)  # families with attention that LLM-Profile measures product by product
_NULL = ("q_lora_rank", "sliding_window")  # null in a config.json, where the library's default is a number
_FLAVOURS = ("attention_type", "layer_type", "is_sliding", "sliding_window", "use_rope")  # of layers of equal sizes


class Checkpoint(NamedTuple):
    """What is to be built: a config, its number of layers, and the folder of its weights where there is one."""

    name: str
    config: dict[str, Any]
    layers: int
    folder: Path | None
    remark: str  # what will not be measured as its name says
    toml: bool  # its config was read from TOML, which cannot say null


class Built(NamedTuple):
    """A model on its device, ready to run."""

    torch: Any
    model: Any
    layers: Any  # the list of decoder layers
    device: str
    dtype: str
    attention: str
    weights: str
    vocabulary: int

    def tokens(self, number: int) -> Any:
        """One sequence of random tokens: ``built.tokens(128)``"""
        return self.torch.randint(0, self.vocabulary, (1, number), device=self.device)

    def settle(self) -> None:
        """Wait until the device has done its work."""
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def run(self, tokens: Any, cache: dict[str, Any] | None = None) -> Any:
        """One forward pass that keeps what it computes for the next token: ``built.run(built.tokens(8)).logits``"""
        return self.model(tokens, use_cache=True, **(cache or {}))

    def filled(self, cached: int) -> dict[str, Any]:
        """What a pass after ``cached`` tokens is given; nothing where there are none."""
        if not cached:
            return {}
        short_answer = "logits_to_keep" in inspect.signature(self.model.forward).parameters
        output = self.model(self.tokens(cached), use_cache=True, **({"logits_to_keep": 1} if short_answer else {}))
        return kept_cache(output)


def kept_cache(output: Any) -> dict[str, Any]:
    """What a forward pass hands on to the next, under the name that the model takes it: its cache or its state."""
    for word in ("past_key_values", "cache_params"):
        if getattr(output, word, None) is not None:
            return {word: getattr(output, word)}
    raise BadValue("this model keeps no KV cache, so it has no decode phase to measure; use `mode` prefill")


def load_libraries() -> tuple[Any, Any]:
    """PyTorch and transformers, or a sentence about the one that is missing."""
    require_library("profile MODEL", "torch", "transformers")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # the profiler writes to stderr whenever it starts or stops
    torch, transformers = (load_library(name, "profile MODEL") for name in ("torch", "transformers"))
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


def check_device(torch: Any, device: str) -> None:
    """Refuse a device that is not there."""
    if device not in ("cuda", "cpu"):
        raise UnknownName("`device`", device, ("cuda", "cpu"))
    if device == "cuda" and not torch.cuda.is_available():
        raise BadValue("profile finds no CUDA device; `device` cpu measures the CPU")


def checkpoint(text: str, token: str | None = None) -> Checkpoint:
    """What a name, an id or a path stands for: ``checkpoint("llama-3.1-8b").layers  # 32``"""
    entry = catalog.model(text, token)
    if entry.network or not isinstance(entry.config.get("model_type"), str):
        raise BadValue(
            f"{entry.name} has no model_type, so transformers cannot build it; profile MODEL needs a config "
            "of Hugging Face"
        )
    config = copy.deepcopy(entry.config)
    section = _section(config)
    quantised = any(part.pop(key, None) for key in _QUANTISED for part in (config, section)) or entry.quantization
    layers = _whole(section)
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise BadFile(
            f"the config of {entry.name} must say how many layers it has (num_hidden_layers), not {abbreviate(layers)}"
        )
    source = Path(entry.source)
    toml = str(text).endswith(".toml") or (not source.is_file() and catalog.catalog_entry(str(text)) is not None)
    folder = source.parent if source.name == "config.json" and source.is_file() else None
    if folder and (quantised or not any(weights for pattern in _WEIGHTS for weights in folder.glob(pattern))):
        folder = None
    remark = "its quantisation is ignored: layers are measured unquantised" if quantised else ""
    return Checkpoint(entry.name, config, layers, folder, remark, toml)


def _section(config: dict[str, Any]) -> dict[str, Any]:
    """The part of a config that describes the decoder."""
    for word in _SECTIONS:
        if isinstance(config.get(word), dict):
            inner: dict[str, Any] = config[word]
            return inner
    return config


def _whole(section: dict[str, Any]) -> Any:
    """How many layers a config says it has, or whatever it says instead."""
    lists = [section[word] for word in _PER_LAYER if isinstance(section.get(word), list)]
    return next((section[word] for word in _LAYERS if word in section), len(lists[0]) if lists else None)


def shortened(config: dict[str, Any], layers: int) -> dict[str, Any]:
    """A config with fewer layers; what has an entry per layer is cut too: ``shortened({"n_layer": 8, …}, 1)``"""
    config = copy.deepcopy(config)
    section = _section(config)
    whole = _whole(section)
    for word, value in section.items():
        if isinstance(value, list | str) and len(value) == whole and (isinstance(value, list) or "pattern" in word):
            section[word] = value[:layers]
        elif word in _LAYERS:
            section[word] = layers
    return config


def _made(check: Checkpoint, layers: int, make: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    """A model and its decoder's config; the language model alone where the config describes more than that."""
    _, transformers = load_libraries()
    data = shortened(check.config, layers)
    data["model_type"] = _SAME.get(data["model_type"], data["model_type"])
    if data["model_type"] not in transformers.CONFIG_MAPPING:
        raise BadValue(
            f"transformers {transformers.__version__} has no models of type {abbreviate(data['model_type'])}, "
            f"which {check.name} is; code that comes with a model is not run"
        )
    try:
        if check.toml:
            section = _section(data)
            defaults = transformers.CONFIG_MAPPING[section.get("model_type", data["model_type"])]()
            section.update({word: None for word in _NULL if word not in section and getattr(defaults, word, None)})
        config = transformers.AutoConfig.for_model(**data)
        text = config.get_text_config()
        alone, whole = (transformers.AutoModelForCausalLM, text), (transformers.AutoModelForCausalLM, config)
        ways = [whole, alone] if check.folder else [alone, whole]
        for way in (*ways, (transformers.AutoModelForImageTextToText, config)):
            if type(way[1]) in way[0]._model_mapping:
                return make(*way), text
    except MemoryError:
        raise
    except Exception as error:  # whatever a library of hundreds of models raises about a config
        if "out of memory" in str(error).lower():
            raise BadValue(
                f"{layers} of {check.layers} layers of {check.name} do not fit in memory here; give fewer"
            ) from None
        why = " ".join(str(error).split())[:160]
        raise BadFile(f"transformers {transformers.__version__} cannot build {check.name}: {why}") from None
    raise BadValue(
        f"{check.name} is not a text generation model, according to transformers {transformers.__version__} knows"
    )


def outline(check: Checkpoint, layers: int) -> tuple[Any, Any]:
    """The model without memory for its weights, and its list of layers: what there is, before anything is run."""
    torch, _ = load_libraries()

    def make(auto: Any, config: Any) -> Any:
        with torch.device("meta"):
            return auto.from_config(config, dtype=_plain(torch, config.dtype))

    model, _ = _made(check, layers, make)
    return model, _stack(torch, model, check, layers)


def _plain(torch: Any, dtype: Any) -> Any:
    return dtype if dtype in (torch.bfloat16, torch.float16, torch.float32) else torch.bfloat16


def _stack(torch: Any, model: Any, check: Checkpoint, layers: int) -> Any:
    for path, module in model.named_modules():  # from the outside in: the first list of that length is the decoder's
        if isinstance(module, torch.nn.ModuleList) and len(module) == layers and "vis" not in path:
            return module
    raise BadValue(f"{type(model).__name__} of {check.name} has no list of {layers} layers to time separately")


def build(check: Checkpoint, layers: int, device: str) -> Built:
    """The first layers of a model, on a device: ``build(checkpoint("qwen3-0.6b"), 1, "cpu")``"""
    torch, _ = load_libraries()
    torch.manual_seed(0)

    def make(auto: Any, config: Any) -> Any:
        options: dict[str, Any] = {"dtype": _runs(torch, device, _plain(torch, config.dtype))}
        if config.model_type in _APART:
            options["attn_implementation"] = "eager"
        if check.folder:
            return auto.from_pretrained(check.folder, config=config, local_files_only=True, **options).to(device)
        with torch.device(device):
            return auto.from_config(config, **options)

    model, text = _made(check, layers, make)
    model.eval()
    weights = f"weights from {check.folder}" if check.folder else "random weights"
    attention = str(getattr(text, "_attn_implementation", None) or "eager")
    return Built(
        torch,
        model,
        _stack(torch, model, check, layers),
        device,
        str(model.dtype).removeprefix("torch."),
        attention,
        weights,
        int(text.vocab_size),
    )


def _runs(torch: Any, device: str, dtype: Any) -> Any:
    """The number format if the device has it; processors without are a hundred times faster in float32."""
    if device == "cuda" or dtype == torch.float32:
        return dtype
    word = "bf16" if dtype == torch.bfloat16 else "fp16"
    ask = getattr(torch.ops.mkldnn, f"_is_mkldnn_{word}_supported", None)
    return dtype if ask is not None and ask() else torch.float32


def positions(model: Any) -> int | None:
    """The longest sequence that a model is made for; None where it does not say."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def layers_of_every_kind(layers: Any) -> int:
    """How many of the first layers show every kind there is: 1 where all are alike, 4 where the fourth is the last new.

    ``layers_of_every_kind(outline(check, check.layers)[1])``
    """
    seen: set[Any] = set()
    last = 0
    for number, layer in enumerate(layers, 1):
        kind = tuple(
            (
                path,
                type(module).__name__,
                tuple((n, tuple(p.shape)) for n, p in module.named_parameters(recurse=False)),
                tuple(str(vars(module).get(word)) for word in _FLAVOURS),
            )
            for path, module in layer.named_modules()
        )
        if kind not in seen:
            seen.add(kind)
            last = number
    return last


def layers_that_fit(model: Any, layers: Any, free: float) -> int:
    """How many layers' weights take no more than the free bytes, beside all that is not a layer; 0 if not one."""
    stacked, whole = (sum(w.numel() * w.element_size() for w in part.parameters()) for part in (layers, model))
    each, rest = stacked / len(layers), whole - stacked
    return max(0, min(len(layers), int((free - rest) / each)))


def free_bytes(torch: Any, device: str) -> float:
    """Memory that a model may take: four fifths of what is free, because caches and results need some too."""
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
        return 0.8 * float(torch.cuda.mem_get_info()[0])
    try:
        return 0.8 * os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not a system that says
        return 4e9
