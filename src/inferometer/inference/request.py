"""From the words of a request (flags, keyword arguments) to specs, with every value checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.errors import BadValue, UnknownName, abbreviate, about, check_fraction, check_int, check_positive, is_number
from ..base.files import user_path
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan, bind
from ..costs.kernels.measured import profile_of, read_rows
from ..costs.kernels.registry import KernelProfile
from ..network import families
from ..network.families.network_file import build_network
from ..network.graph import Model
from ..specs import calibration as calibrations
from ..specs import catalog
from ..specs.structs import Calibration, Engine, Hardware, Plan, Workload
from .speculation import acceptance_warnings, parse_lora, speculation
from .workload import TOKENS, lengths, longest, pictures, reached, refuse, talk_turns

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
    profile: KernelProfile | None = None  # kernels that the user measured
    usual: Hardware | None = None  # the device before its figures were changed: its kernels keep their ratios
    hf_id: str = ""  # the model's repository on Hugging Face, where the catalogue knows it

    def bind(self) -> BoundPlan:
        """The request bound to names, ready to be priced."""
        return bind(
            self.model,
            self.device,
            self.engine,
            self.plan,
            roles=self.roles,
            efficiency=self.efficiency,
            norm_dtype=self.norm_dtype,
            profile=self.profile,
            nominal_device=self.usual,
        )


def build_request(
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
    max_cudagraph_capture_size: int | None = None,
    gpu_memory_utilization: float | None = None,
    block_size: int | None = None,
    routing_skew: float = 0.0,
    interconnect: str | None = None,
    frontend: str = "in-process",
    calibration: str | Calibration | None = None,
    profile: str | None = None,
    hf_token: str | None = None,
) -> Request:
    """Check everything and put it together; the first thing that is wrong is an error with one sentence."""
    entry = catalog.model(model, hf_token)
    network = _network(entry)
    usual = "vllm" if network.kind == "decoder" else "hf"
    device, machine = catalog.hardware(gpu), catalog.engine(_or(engine, usual))
    case = catalog.usecase(usecase) if usecase is not None else None
    warnings = [*network.warnings]
    if max_cudagraph_capture_size is not None:
        machine = _captured(machine, check_int("--max-cudagraph-capture-size", max_cudagraph_capture_size, least=0))
    if calibration is not None:
        known = calibrations.calibration(calibration)
        warnings += calibrations.mismatch_warnings(known, entry.name, device.name, machine.name)
        machine = calibrations.calibrated_engine(machine, known)

    number = network.dtype if dtype == "auto" else catalog.plain_dtype(dtype)
    wanted = catalog.precision(quantization, "quantization").name if quantization is not None else None
    if (
        wanted is None
        and entry.quantization
        and not catalog.is_declared(entry.quantization, network.quantization.values())
    ):
        wanted = entry.quantization
    if dtype == "auto" and wanted in catalog.UNQUANTIZED:
        number = wanted
    elif dtype == "auto" and number == "fp32" and machine.name not in ("hf", "roofline"):
        number = "bf16" if "bf16" in device.flops else "fp16"
        warnings.append(
            f"the checkpoint is fp32, which {machine.label or machine.name} runs in {number} unless told --dtype fp32"
        )
    roles = precision.precision_by_role(network, number, wanted)
    given_kv = (
        catalog.plain_dtype(kv_cache_dtype, "--kv-cache-dtype", catalog.KV_CACHE_FORMATS)
        if kv_cache_dtype != "auto"
        else ""
    )

    if network.kind != "decoder":
        refuse(
            "{} does not apply to a diffusion model",
            {
                "--turns": turns is not None,
                "--beam-width": beam_width is not None,
                "--prefix-len": prefix_len,
                "--output-len": output_len is not None,
                "--images": images is not None,
                "--usecase": usecase is not None,
                "--speculative-config": speculative_config is not None,
                "--enable-chunked-prefill": enable_chunked_prefill,
            },
        )
    default = (case.input_len if case else 1024) if network.kind == "decoder" else (network.max_position or 256)
    work = Workload(
        batch_size=check_int("--batch-size", _or(batch_size, case.batch_size if case else 1), most=10**7),
        input_len=lengths(_or(input_len, default), network.num_layers),
        output_len=check_int("--output-len", _or(output_len, case.output_len if case else 128), most=TOKENS),
        prefix_len=check_int("--prefix-len", prefix_len, least=0, most=TOKENS),
        beam_width=check_int("--beam-width", _or(beam_width, case.beam_width if case else 1), most=1024),
        turns=talk_turns(turns),
        images=pictures(images, network),
    )
    if work.prefix_len >= longest(work):
        raise BadValue(f"--prefix-len {work.prefix_len:,} must be shorter than the input of {longest(work):,} tokens")
    if isinstance(work.input_len, tuple):
        refuse(
            "per-layer lengths cannot be combined with {}",
            {
                "--prefix-len": prefix_len,
                "--speculative-config": speculative_config is not None,
                "--pipeline-parallel-size": pipeline_parallel_size != 1,
                "--images": images is not None,
                "--micro-batches": micro_batches,
                "--turns": turns is not None,
                "--enable-chunked-prefill": enable_chunked_prefill,
            },
        )
    if turns is not None:
        refuse(
            "--turns says all lengths itself and cannot be combined with {}",
            {
                "--input-len": input_len is not None,
                "--output-len": output_len is not None,
                "--prefix-len": prefix_len,
            },
        )

    check_positive("--gpu-memory-utilization", _or(gpu_memory_utilization, 0.9), 1.0)
    skew = check_fraction("--routing-skew", routing_skew, "0 (uniform) and 1 (always the same experts)")
    behind = check_fraction("--overlap", overlap, "0 (none) and 1 (all that fits behind computing)")
    for flag, switch in (
        ("--enable-expert-parallel", enable_expert_parallel),
        ("--sequence-parallel", sequence_parallel),
        ("--enable-chunked-prefill", enable_chunked_prefill),
        ("--fusion", bool(fusion) if fusion is None else fusion),
    ):
        if not isinstance(switch, bool):
            raise BadValue(f"{flag} must be True or False, not {abbreviate(switch)}")
    for what, given, allowed in (
        ("--attention", attention, ("flash", "eager")),
        ("--frontend", frontend, ("in-process", "http")),
        ("--interconnect", interconnect, tuple(device.links)),
    ):
        if given is not None and given not in allowed:
            raise UnknownName(what, given, allowed)
    layout = {
        "tensor_parallel_size": tensor_parallel_size,
        "pipeline_parallel_size": pipeline_parallel_size,
        "data_parallel_size": data_parallel_size,
        "decode_context_parallel_size": decode_context_parallel_size,
    }
    ranks = {key: check_int(f"--{key.replace('_', '-')}", value, most=65536) for key, value in layout.items()}
    used = ranks["tensor_parallel_size"] * ranks["pipeline_parallel_size"] * ranks["data_parallel_size"]
    per_node = check_int(
        "--gpus-per-node", _or(gpus_per_node, parallelism.gpus_per_nvlink_domain(device, used)), most=65536
    )
    if not is_number(cpu_offload_gb) or not 0 <= cpu_offload_gb < 1e6:
        raise BadValue(f"--cpu-offload-gb must be between 0 and a million, not {abbreviate(cpu_offload_gb)}")
    usual_cache = machine.cache_dtype.get(precision.summary(roles, number), number)
    plan = Plan(
        **ranks,
        enable_expert_parallel=enable_expert_parallel,
        sequence_parallel=sequence_parallel,
        enable_chunked_prefill=enable_chunked_prefill,
        overlap=behind,
        micro_batches=check_int("--micro-batches", micro_batches, least=0, most=10**6),
        nodes=check_int("--nodes", _or(nodes, -(-used // per_node)), most=10**6),
        gpus_per_node=per_node,
        cpu_offload_bytes=cpu_offload_gb * 1e9,
        speculation=speculation(speculative_config, network, entry.name),
        lora=parse_lora(lora_rank, lora_targets, lora_adapters, network),
        dtype=number,
        quantization=precision.summary(roles, number),
        kv_cache_dtype=given_kv or network.kv_cache_dtype or usual_cache,
        attention=attention or machine.attention,
        fusion=machine.fusion if fusion is None else fusion,
        max_num_batched_tokens=check_int(
            "--max-num-batched-tokens", _or(max_num_batched_tokens, machine.max_num_batched_tokens)
        ),
        max_num_seqs=check_int("--max-num-seqs", _or(max_num_seqs, machine.max_num_seqs)),
        max_model_len=check_int("--max-model-len", max_model_len)
        if max_model_len is not None
        else network.max_position,
        gpu_memory_utilization=float(_or(gpu_memory_utilization, machine.memory_utilization)),
        block_size=check_int("--block-size", _or(block_size, machine.block_size), most=10**6),
        routing_skew=skew,
        interconnect=interconnect or device.interconnect,
        frontend=frontend,  # type: ignore[arg-type]
    )
    limit, end = plan.max_model_len, reached(work, network)
    if limit and end > limit:
        whose = f"the model's {limit:,} positions" if max_model_len is None else f"--max-model-len {limit:,}"
        warnings.append(f"{end:,} tokens are more than {whose}")
    alone = -(-work.batch_size // plan.data_parallel_size) * work.beam_width
    if alone > plan.max_num_seqs:
        raise BadValue(
            f"{alone:,} sequences on a replica are more than --max-num-seqs {plan.max_num_seqs:,}: they "
            "would not run at once; raise --max-num-seqs or give a smaller --batch-size"
        )
    warnings += acceptance_warnings(plan.speculation)
    named = msgspec.structs.replace(network, name=entry.name)
    norms = catalog.plain_dtype(norm_dtype, "--norm-dtype") if norm_dtype is not None else ""
    mine = None if profile is None else profile_of(read_rows(user_path(profile)), device, profile)
    name, _, changed = str(gpu).partition(":")
    before = catalog.hardware(name) if changed else None
    return Request(
        named,
        device,
        machine,
        plan,
        work,
        roles,
        factors(efficiency),
        norms,
        entry.source,
        tuple(warnings),
        mine,
        before,
        entry.hf_id,
    )


@cache_by_identity(32)
def _network(entry: catalog.ModelEntry) -> Model:
    """The network of an entry; those of the catalogue are built once, and all that is worked out for them stays."""
    return (build_network if entry.network else families.build)(entry.config, entry.source or entry.name)


def _captured(machine: Engine, most: int) -> Engine:
    """An engine whose graphs reach up to steps of so many tokens."""
    kept = tuple(pair for pair in machine.graph_sizes if pair[0] < most)
    above = next((by for upto, by in machine.graph_sizes if upto >= most), machine.graph_sizes[-1][1] if kept else 1)
    return msgspec.structs.replace(machine, graph_tokens=most, graph_sizes=(*kept, (most, above)) if most else ())


def _or(value: Any, default: Any) -> Any:
    return default if value is None else value


@about("efficiency")
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
    if isinstance(value, int | float) and is_number(value):
        value = dict.fromkeys(_FACTORS, float(value))
    if not isinstance(value, Mapping):
        raise BadValue(f"--efficiency must be a number in (0, 1] or flops=…,hbm=…,intra=…,inter=…, not {value!r}")
    for key, factor in value.items():
        if key not in _FACTORS:
            raise UnknownName("efficiency", key, _FACTORS)
        check_positive(f"--efficiency {key}", factor, 1.0)
    return dict(value)


def _fraction(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue(f"{what} must be a number in (0, 1], not {text!r}") from None
