"""From the words of a request (flags, keyword arguments) to specs, with every value checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from . import catalog, models, numerics
from .errors import BadValue, UnknownName, positive, real, whole
from .graph import Model
from .methods import adapters, speculation
from .models.network import build_network
from .spec import Engine, Hardware, Image, Plan, Turn, Workload

TOKENS = 10**8  # no request is longer than this
_FACTORS = ("flops", "hbm", "intra", "inter")


class Request(NamedTuple):
    """A checked request."""

    model: Model
    device: Hardware
    engine: Engine
    plan: Plan
    workload: Workload
    roles: dict[str, str]
    efficiency: dict[str, float] | None
    norm_dtype: str
    source: str
    warnings: tuple[str, ...]


def request(
    model: str,
    gpu: str = "h100-sxm",
    *,
    engine: str | None = None,
    batch_size: int | None = None,
    input_len: int | Sequence[int] | str | None = None,
    output_len: int | None = None,
    prefix_len: int = 0,
    beam_width: int | None = None,
    turns: str | Sequence[tuple[int, int]] | None = None,
    images: str | tuple[int, int, int] | None = None,
    usecase: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    data_parallel_size: int = 1,
    enable_expert_parallel: bool = False,
    sequence_parallel: bool = False,
    decode_context_parallel_size: int = 1,
    micro_batches: int = 0,
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    speculative_config: str | Mapping[str, Any] | None = None,
    lora_rank: int | None = None,
    lora_targets: str | Sequence[str] | None = None,
    lora_adapters: int = 1,
    cpu_offload_gb: float = 0.0,
    enable_chunked_prefill: bool = False,
    overlap: float = 0.0,
    quantization: str | None = None,
    dtype: str = "auto",
    kv_cache_dtype: str = "auto",
    norm_dtype: str | None = None,
    attention: str | None = None,
    fusion: bool | None = None,
    efficiency: float | str | Mapping[str, float] | None = None,
    max_model_len: int | None = None,
    max_num_batched_tokens: int | None = None,
    max_num_seqs: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    routing_skew: float = 0.0,
    interconnect: str | None = None,
    frontend: str = "in-process",
    hf_token: str | None = None,
) -> Request:
    """Check everything and put it together; the first thing that is wrong is an error with one sentence."""
    entry = catalog.model(model, hf_token)
    network = (build_network if entry.network else models.build)(entry.config, entry.source or entry.name)
    usual = "vllm" if network.kind == "decoder" else "hf"
    device, machine = catalog.hardware(gpu), catalog.engine(_or(engine, usual))
    case = catalog.usecase(usecase) if usecase is not None else None
    warnings = [*network.warnings]

    number = network.dtype if dtype == "auto" else catalog.plain_dtype(dtype)
    wanted = catalog.precision(quantization, "quantization").name if quantization is not None else None
    if wanted is None and entry.quantization and not network.quantization:
        wanted = entry.quantization
    if wanted in ("bf16", "fp16", "fp32") and dtype == "auto":
        number = wanted
    roles = numerics.by_role(network, number, wanted)
    kv = kv_cache_dtype if kv_cache_dtype != "auto" else (network.kv_cache_dtype or number)

    default = (case.input_len if case else 1024) if network.kind == "decoder" else (network.max_position or 256)
    work = Workload(
        batch_size=whole("--batch-size", _or(batch_size, case.batch_size if case else 1), most=10**7),
        input_len=_lengths(_or(input_len, default), network.num_layers),
        output_len=whole("--output-len", _or(output_len, case.output_len if case else 128), most=TOKENS),
        prefix_len=whole("--prefix-len", prefix_len, least=0, most=TOKENS),
        beam_width=whole("--beam-width", _or(beam_width, case.beam_width if case else 1), most=1024),
        turns=_turns(turns),
        images=_images(images, network),
    )
    longest = work.input_len if isinstance(work.input_len, int) else max(work.input_len)
    if work.prefix_len >= longest:
        raise BadValue(f"--prefix-len {work.prefix_len:,} must be shorter than the input of {longest:,} tokens")

    positive("--gpu-memory-utilization", _or(gpu_memory_utilization, 0.9), 1.0)
    if not real(routing_skew) or not 0 <= routing_skew <= 1:
        raise BadValue(
            f"--routing-skew must be between 0 (uniform) and 1 (always the same experts), not {routing_skew!r}"
        )
    if not 0 <= overlap <= 1:
        raise BadValue(f"--overlap must be between 0 (none) and 1 (all that fits behind computing), not {overlap!r}")
    for what, given, allowed in (
        ("--attention", attention, ("flash", "eager")),
        ("--frontend", frontend, ("in-process", "http")),
        ("--interconnect", interconnect, tuple(device.links)),
    ):
        if given is not None and given not in allowed:
            raise UnknownName(what, given, allowed)
    layout = {
        "tensor_parallel_size": tensor_parallel_size, "pipeline_parallel_size": pipeline_parallel_size,
        "data_parallel_size": data_parallel_size, "decode_context_parallel_size": decode_context_parallel_size,
    }  # fmt: skip
    ranks = {key: whole(f"--{key.replace('_', '-')}", value, most=65536) for key, value in layout.items()}
    used = ranks["tensor_parallel_size"] * ranks["pipeline_parallel_size"] * ranks["data_parallel_size"]
    per_node = whole("--gpus-per-node", _or(gpus_per_node, _node(device, used)), most=65536)
    if not 0 <= cpu_offload_gb < 1e6:
        raise BadValue(f"--cpu-offload-gb must be between 0 and a million, not {cpu_offload_gb!r}")
    plan = Plan(
        **ranks,
        enable_expert_parallel=enable_expert_parallel,
        sequence_parallel=sequence_parallel,
        enable_chunked_prefill=enable_chunked_prefill,
        overlap=float(overlap),
        micro_batches=whole("--micro-batches", micro_batches, least=0, most=10**6),
        nodes=whole("--nodes", _or(nodes, -(-used // per_node)), most=10**6),
        gpus_per_node=per_node,
        cpu_offload_bytes=cpu_offload_gb * 1e9,
        speculation=speculation(speculative_config, network, entry.name),
        lora=adapters(lora_rank, lora_targets, lora_adapters, network),
        dtype=number,
        quantization=numerics.summary(roles, number),
        kv_cache_dtype=catalog.precision(kv, "KV cache dtype").name,
        attention=attention or machine.attention,
        fusion=machine.fusion if fusion is None else fusion,
        max_num_batched_tokens=whole("--max-num-batched-tokens",
                                     _or(max_num_batched_tokens, machine.max_num_batched_tokens)),
        max_num_seqs=whole("--max-num-seqs", _or(max_num_seqs, machine.max_num_seqs)),
        max_model_len=whole("--max-model-len", max_model_len) if max_model_len is not None else network.max_position,
        gpu_memory_utilization=float(_or(gpu_memory_utilization, machine.memory_utilization)),
        block_size=whole("--block-size", _or(block_size, machine.block_size), most=10**6),
        routing_skew=float(routing_skew),
        interconnect=interconnect or device.interconnect,
        frontend=frontend,  # type: ignore[arg-type]
    )  # fmt: skip
    limit = plan.max_model_len
    reached = longest + (work.output_len if network.kind == "decoder" else 0)
    if work.turns:
        reached = sum(t.input_len + t.output_len for t in work.turns)
    if limit and reached > limit:
        warnings.append(f"{reached:,} tokens are more than the model's {limit:,} positions")
    if work.batch_size * work.beam_width > plan.max_num_seqs:
        warnings.append(f"{work.batch_size * work.beam_width:,} sequences are more than max_num_seqs "
                        f"{plan.max_num_seqs:,}: the engine would run them in waves")  # fmt: skip
    named = msgspec.structs.replace(network, name=entry.name)
    norms = catalog.precision(norm_dtype, "norm dtype").name if norm_dtype is not None else ""
    return Request(named, device, machine, plan, work, roles, factors(efficiency), norms, entry.source, tuple(warnings))


def _node(device: Hardware, used: int) -> int:
    """GPUs of a usual node: what the fast link joins, where that is more than one box (NVL72)."""
    link = device.links.get(device.interconnect)
    return max(device.gpus_per_node, min(link.devices, used) if link and link.devices <= 1024 else 1)


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


def numbers(what: str, text: str) -> list[int]:
    """``numbers("--input-len", "1024,512")  # [1024, 512]``"""
    try:
        return [int(piece) for piece in text.replace(" ", "").split(",")]
    except ValueError:
        raise BadValue(f"{what} must be whole numbers with commas between, not {text!r}") from None


def _lengths(value: int | Sequence[int] | str, layers: int) -> int | tuple[int, ...]:
    """One length, or one per layer."""
    if isinstance(value, str):
        value = numbers("--input-len", value)
    if isinstance(value, int) or real(value):
        return whole("--input-len", value, most=TOKENS)
    found = tuple(whole("--input-len", v, most=TOKENS) for v in value)
    if len(found) == 1:
        return found[0]
    if len(found) != layers:
        raise BadValue(
            f"--input-len has {len(found)} numbers, but the model has {layers} layers: give one, or one per layer"
        )
    return found


def _turns(value: str | Sequence[tuple[int, int]] | None) -> tuple[Turn, ...]:
    """``512:128,256:128`` as prompts and answers over one growing context."""
    if value is None:
        return ()
    if isinstance(value, str):
        pieces = [piece.split(":") for piece in value.split(",")]
        if any(len(p) != 2 for p in pieces):
            raise BadValue(f"--turns must be pairs input:output with commas between, not {value!r}")
        value = [(numbers("--turns", a)[0], numbers("--turns", b)[0]) for a, b in pieces]
    return tuple(Turn(input_len=whole("--turns", a, most=TOKENS), output_len=whole("--turns", b, most=TOKENS))
                 for a, b in value)  # fmt: skip


def _images(value: str | tuple[int, int, int] | None, model: Model) -> Image | None:
    """``1x896x896``: count, height and width of the images in every request."""
    if value is None:
        return None
    if model.vision is None:
        raise BadValue("--images needs a model with a vision tower; this one reads text only")
    if isinstance(value, str):
        found = re.fullmatch(r"(\d+)x(\d+)x(\d+)", value.strip().lower())
        if not found:
            raise BadValue(f"--images must be COUNTxHEIGHTxWIDTH such as 1x896x896, not {value!r}")
        value = (int(found[1]), int(found[2]), int(found[3]))
    count, height, width = value
    return Image(count=whole("--images", count, most=10000), height=whole("--images", height, most=100000),
                 width=whole("--images", width, most=100000))  # fmt: skip


def factors(value: float | str | Mapping[str, float] | None) -> dict[str, float] | None:
    """``--efficiency 0.6`` or ``flops=0.7,hbm=0.85,intra=0.8,inter=0.7``; each in (0, 1]."""
    if value is None:
        return None
    if isinstance(value, str):
        if "=" not in value:
            value = _fraction("--efficiency", value)
        else:
            pairs = [piece.partition("=") for piece in value.split(",")]
            value = {key.strip(): _fraction(f"--efficiency {key}", number) for key, _, number in pairs}
    if isinstance(value, int | float) and real(value):
        value = dict.fromkeys(_FACTORS, float(value))
    if not isinstance(value, Mapping):
        raise BadValue(f"--efficiency must be a number in (0, 1] or flops=…,hbm=…,intra=…,inter=…, not {value!r}")
    for key, factor in value.items():
        if key not in _FACTORS:
            raise UnknownName("efficiency", key, _FACTORS)
        positive(f"--efficiency {key}", factor, 1.0)
    return dict(value)


def _fraction(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue(f"{what} must be a number in (0, 1], not {text!r}") from None
