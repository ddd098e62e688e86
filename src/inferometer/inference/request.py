"""From flags or keyword arguments to a checked request: model, device, engine, plan and workload as specs.

request = build_request("llama-3.1-8b", "h200", batch_size=8)
request.plan.max_num_seqs, request.workload.input_len      # 1024, 1024
request.bind()                                             # ready to be estimated
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.errors import BadValue, UnknownName, abbreviate, about, is_number
from ..costs import parallelism, precision
from ..costs.binding import BoundPlan, bind
from ..costs.kernels.measured import user_profile
from ..costs.kernels.registry import KernelProfile
from ..costs.power import least_cap
from ..network import families
from ..network.families.network_file import build_network
from ..network.graph import RECURRENT, Model
from ..specs import calibration as calibrations
from ..specs import catalog, engine_rules
from ..specs.arguments import check_names, checked, flag
from ..specs.hosts import DEFAULT_HOST, host, hosted_engine, is_machine, machine, machine_device
from ..specs.plan_args import PlanArgs
from ..specs.structs import Engine, Hardware, Plan, Speculation, Usecase, Workload
from .kv_offload import parse_kv_offload
from .speculation import acceptance_warnings, parse_lora, parse_speculation
from .workload import longest_input, parse_images, parse_lengths, parse_turns, positions_reached, refuse

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import PlanKwargs

_FACTORS = ("flops", "hbm", "intra", "inter")
LEAST_EFFICIENCY = 1e-6  # less is no share of a peak but a slip, and its times leave the range of numbers
_CONVERSATION = (  # what only a model that answers with tokens has
    "turns",
    "beam_width",
    "prefix_len",
    "output_len",
    "images",
    "usecase",
    "speculative_config",
    "enable_chunked_prefill",
)
_NOT_PER_LAYER = (  # what one prompt length per layer (token pruning) leaves undefined
    "prefix_len",
    "speculative_config",
    "pipeline_parallel_size",
    "micro_batches",
    "turns",
    "enable_chunked_prefill",
)


class Request(NamedTuple):
    """One question about one plan, checked: a model on a device under an engine, its plan and its workload."""

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
    nominal_device: Hardware | None = None  # the device before its figures were changed: its kernels keep their ratios
    hf_token: str | None = None  # for the config of a draft model
    hf_id: str = ""  # the model on Hugging Face, if it came from there
    ruled_engine: Engine | None = None  # the engine before its rules were applied to device and layout
    given: Mapping[str, Any] = {}  # figures of the engine that the user chose
    arguments: Mapping[str, Any] = {}  # of `build_request`, which made it

    def bind(self) -> BoundPlan:
        """The request bound to names, ready to be estimated."""
        return bind(
            self.model,
            self.device,
            self.engine,
            self.plan,
            roles=self.roles,
            efficiency=self.efficiency,
            norm_dtype=self.norm_dtype,
            profile=self.profile,
            nominal_device=self.nominal_device,
            hf_token=self.hf_token,
        )

    def replan(self, plan: Plan, **figures: Any) -> Request:
        """The same request with another layout, and the engine's defaults for that layout.

        ``figures``: of the engine, as if the user had given them: ``request.replan(plan, max_num_batched_tokens=4096)``
        """
        if self.ruled_engine is None or not self.ruled_engine.when:
            return self._replace(plan=plan)
        facts = _facts(self.ruled_engine, self.device, self.model, plan)
        resolved = engine_rules.resolve(self.ruled_engine, facts, {**self.given, **figures})
        ruled = {name: getattr(resolved, name) for name in engine_rules.ruled_fields(self.ruled_engine)}
        engine = msgspec.structs.replace(self.engine, **ruled, defaults=resolved.defaults)
        if engine == self.engine:  # what is cached by identity stays so
            engine = self.engine
        return self._replace(engine=engine, plan=msgspec.structs.replace(plan, **_settings(engine)))

    def engine_here(self, name: str, plan: Plan) -> Engine:
        """An engine with its defaults for this model on this device in a layout; at the request's version if it is its.

        ``request.engine_here("sglang", request.plan).memory_utilization``
        """
        same = self.ruled_engine is not None and self.engine.name == name
        engine = self.ruled_engine if same and self.ruled_engine else catalog.engine(name)
        given = {"moe_backend": self.engine.moe_backend} if same else {}
        return engine_rules.resolve(engine, _facts(engine, self.device, self.model, plan), given)


def build_request(model: str, gpu: str = "h100-sxm", **kwargs: Unpack[PlanKwargs]) -> Request:
    """Check everything and put it together; the first thing that is wrong is an error with one sentence."""
    given = {name: value for name, value in kwargs.items() if value is not None}
    check_names(PlanArgs, given)
    assume_decoder = bool(given.get("assume_decoder"))
    entry = catalog.model(model, kwargs.get("hf_token"), assume_decoder=assume_decoder)
    network = network_of(entry, assume_decoder)
    network = precision.with_states(network, given.get("mamba_ssm_cache_dtype"))
    device = catalog.hardware(gpu)
    usecase = catalog.usecase(str(given["usecase"])) if "usecase" in given else None
    args = checked(PlanArgs, {**_usecase_lengths(usecase), **given})
    name, _, changed = str(gpu).partition(":")
    nominal_device = catalog.hardware(name) if changed else None
    measured = machine(str(args.profile), device) if is_machine(args.profile) else None
    if measured is not None:
        nominal_device, device = nominal_device or device, machine_device(device, measured)
    _refuse_combinations(args, given, network)
    speculation = parse_speculation(args.speculative_config, network, entry.name)
    ruled_engine = _engine(args, network)
    engine, given_figures = _resolved(args, ruled_engine, network, device, speculation)
    host_profile = measured if args.host_profile is None else host(args.host_profile)
    engine = hosted_engine(engine, host_profile or host(DEFAULT_HOST))
    calibration = None if args.calibration is None else calibrations.calibration(args.calibration)
    engine = engine if calibration is None else calibrations.calibrated_engine(engine, calibration)
    dtype, quantization, format_warnings = _formats(args, entry, network, device, engine)
    roles = precision.precision_by_role(network, dtype, quantization)
    workload = _workload(args, given, network)
    plan = _plan(args, network, device, engine, speculation, dtype, roles)
    missing = parallelism.missing_link(network, plan, device)
    if missing:
        raise BadValue(missing)
    warnings = [*network.warnings, *format_warnings, *_check_lengths(args, plan, workload, network)]
    warnings += _check_moe_backend(engine, network, device, roles)
    if given.get("mamba_ssm_cache_dtype", "auto") != "auto" and "hybrid" not in _layer_kinds(network):
        warnings += [f"{flag('mamba_ssm_cache_dtype')} changes nothing: {entry.name} has no recurrent layers"]
    profile = None if args.profile is None or measured is not None else _user_profile(args.profile, device, entry)
    warnings += profile.warnings if profile is not None else ()
    warnings += (
        [] if calibration is None else calibrations.mismatch_warnings(calibration, entry.name, device, engine, plan)
    )
    return Request(
        model=msgspec.structs.replace(network, name=entry.name),
        device=device,
        engine=engine,
        plan=plan,
        workload=workload,
        roles=roles,
        efficiency=parse_efficiency(args.efficiency),
        norm_dtype=catalog.plain_dtype(args.norm_dtype, "`norm_dtype`") if args.norm_dtype is not None else "",
        source=entry.source,
        warnings=(*warnings, *acceptance_warnings(plan.speculation)),
        profile=profile,
        nominal_device=nominal_device,
        hf_token=args.hf_token,
        hf_id=entry.hf_id,
        ruled_engine=ruled_engine,
        given=given_figures,
        arguments={"model": model, "gpu": gpu, **given},
    )


def _user_profile(path: str, device: Hardware, entry: catalog.ModelEntry) -> KernelProfile:
    """A user's file of kernels, or of a model's layers: rows of a model without sizes have those of this one."""
    from .layer_profile import layer_reader
    from .model_shapes import shapes_of

    return user_profile(path, device, layer_reader(lambda: shapes_of(entry.name, entry.config)))


@cache_by_identity(256)
def network_of(entry: catalog.ModelEntry, assume_decoder: bool = False) -> Model:
    """The network of an entry; those of the catalogue are built once, and all that is worked out for them stays."""
    where = entry.source or entry.name
    if entry.network:
        return build_network(entry.config, where)
    return families.build(entry.config, where, assume_decoder=assume_decoder)


def _usecase_lengths(usecase: Usecase | None) -> dict[str, int]:
    """The typical sizes of a use case, which stand where nothing else was given."""
    if usecase is None:
        return {}
    return {name: getattr(usecase, name) for name in ("batch_size", "input_len", "output_len", "beam_width")}


def _engine(args: PlanArgs, network: Model) -> Engine:
    """The engine that was given, its rules still to be applied."""
    return catalog.engine(("vllm" if network.kind == "decoder" else "hf") if args.engine is None else args.engine)


def _resolved(
    args: PlanArgs, engine: Engine, network: Model, device: Hardware, speculation: Speculation | None
) -> tuple[Engine, dict[str, Any]]:
    """The engine with its defaults for version, device and layout, and the figures that the user chose instead."""
    figures = {
        "max_num_batched_tokens": args.max_num_batched_tokens,
        "max_num_seqs": args.max_num_seqs,
        "memory_utilization": args.gpu_memory_utilization,
        "block_size": args.block_size,
        "moe_backend": _moe_backend(args.moe_backend, engine),
        "prefill_graph_tokens": args.max_prefill_cudagraph_capture_size,
        **_graphs_up_to(engine, args.max_cudagraph_capture_size),
    }
    given = {name: value for name, value in figures.items() if value is not None}
    layout = Plan(
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        data_parallel_size=args.data_parallel_size,
        speculation=speculation,
    )
    return engine_rules.resolve(engine, _facts(engine, device, network, layout), given), given


def _moe_backend(text: str | None, engine: Engine) -> str | None:
    """The kernels that experts are given to, None where the engine chooses."""
    name = (text or "auto").lower().replace("-", "_")
    if name == "auto":
        return None
    if not engine.moe_backends:
        raise BadValue(f"{engine.label or engine.name} has no `moe_backend` to choose; leave it away")
    if name not in engine.moe_backends:
        raise UnknownName("`moe_backend`", str(text), ("auto", *engine.moe_backends))
    return name


def _facts(engine: Engine, device: Hardware, network: Model, plan: Plan) -> engine_rules.RuleFacts:
    """What the engine's rules look at."""
    latent = any("kv_lora_rank" in block.dims for block in network.blocks)
    sparse = any(span.kind == "top_k" for span in network.spans.values())
    spec = plan.speculation
    return engine_rules.RuleFacts.of(
        engine,
        device,
        tp=plan.tensor_parallel_size,
        pp=plan.pipeline_parallel_size,
        dp=plan.data_parallel_size,
        tokens_per_decode=1 + (spec.num_speculative_tokens if spec else 0),
        speculation=spec.method if spec else "",
        attention=("sparse_mla" if sparse else "mla") if latent else "",
        models=(network.family, *_layer_kinds(network)),
    )


@cache_by_identity(256)
def _layer_kinds(network: Model) -> list[str]:
    """What is special about its layers: mixture (experts), hybrid (recurrent states); else dense."""
    kinds = {op.kind for block in network.blocks for op in block.ops}
    named = (({"moe"}, "mixture"), (RECURRENT, "hybrid"))
    return [word for special, word in named if special & kinds] or ["dense"]


def _graphs_up_to(engine: Engine, most: int | None) -> dict[str, Any]:
    """CUDA graphs that reach up to steps of so many tokens: the engine's sizes, padded, as far as that."""
    if most is None:
        return {}
    sizes = engine.graph_sizes if engine.graph_padding else engine.padded_graph_sizes
    kept = tuple(pair for pair in sizes if pair[0] < most)
    above = next((by for upto, by in sizes if upto >= most), sizes[-1][1] if kept else 1)
    return {"graph_tokens": most, "graph_sizes": (*kept, (most, above)) if most else (), "graph_padding": True}


def _settings(engine: Engine) -> dict[str, Any]:
    """The engine's settings, as a plan has them."""
    return {
        "max_num_batched_tokens": engine.max_num_batched_tokens,
        "max_num_seqs": engine.max_num_seqs,
        "gpu_memory_utilization": float(engine.memory_utilization),
        "block_size": engine.block_size,
    }


def _formats(
    args: PlanArgs, entry: catalog.ModelEntry, network: Model, device: Hardware, engine: Engine
) -> tuple[str, str | None, list[str]]:
    """The dtype of activations and plain weights, the quantisation if there is one, and what to say of them."""
    dtype = network.dtype if args.dtype == "auto" else catalog.plain_dtype(args.dtype)
    quantization = catalog.precision(args.quantization, "quantization").name if args.quantization is not None else None
    declared = entry.quantization and not catalog.is_declared(entry.quantization, network.quantization.values())
    if quantization is None and declared:
        quantization = entry.quantization
    if args.dtype == "auto" and quantization in catalog.UNQUANTIZED:
        return str(quantization), quantization, []
    if args.dtype != "auto" or dtype != "fp32" or engine.name in ("hf", "roofline"):
        return dtype, quantization, []
    dtype = "bf16" if "bf16" in device.flops else "fp16"
    warning = (
        f"the checkpoint is fp32, which {engine.label or engine.name} runs in {dtype} without {flag('dtype')} fp32"
    )
    return dtype, quantization, [warning]


def _refuse_combinations(args: PlanArgs, given: Mapping[str, object], network: Model) -> None:
    """Arguments that contradict each other, or the kind of model."""
    stated = {name: value is not False and value != 0 for name, value in given.items()}
    if network.kind != "decoder":
        refuse("{} does not apply to a diffusion model", {name: stated.get(name) for name in _CONVERSATION})
    else:
        refuse("{} applies to diffusion models only", {"num_inference_steps": stated.get("num_inference_steps")})
    if isinstance(parse_lengths(args.input_len, network.num_layers), tuple):
        stated["pipeline_parallel_size"] = args.pipeline_parallel_size != 1
        refuse("per-layer lengths cannot be combined with {}", {name: stated.get(name) for name in _NOT_PER_LAYER})
    if args.turns is not None:
        lengths = {name: stated.get(name) for name in ("input_len", "output_len", "prefix_len")}
        refuse("`turns` sets all lengths and cannot be combined with {}", lengths)


def _workload(args: PlanArgs, given: Mapping[str, object], network: Model) -> Workload:
    """The batch of requests; a diffusion model's length is its picture's unless one is given."""
    length = args.input_len
    if network.kind != "decoder" and "input_len" not in given:
        length = network.max_position or 256
    workload = Workload(
        batch_size=args.batch_size,
        input_len=parse_lengths(length, network.num_layers),
        output_len=args.output_len,
        prefix_len=args.prefix_len,
        beam_width=args.beam_width,
        turns=parse_turns(args.turns),
        images=parse_images(args.images, network),
        num_inference_steps=args.num_inference_steps if network.kind == "diffusion" else 0,
    )
    longest = longest_input(workload)
    if workload.prefix_len >= longest:
        raise BadValue(
            f"`prefix_len` {workload.prefix_len:,} must be shorter than the input of {longest:,} tokens",
        )
    return workload


def _power_cap(watts: float | None, device: Hardware) -> float:
    """The cap of a device in W, 0 for none; refused where no clock could keep it."""
    if watts is None:
        return 0.0
    if not device.power:
        raise BadValue(f"`power_cap`: {device.name} has no power figure; give one as `gpu` {device.name}:power=700")
    least = ceil(least_cap(device))
    if watts < least:
        raise BadValue(
            f"`power_cap` must be at least {least} W for {device.name}, not {watts:g}: idle power and "
            "memory alone draw nearly that much"
        )
    return watts


def _plan(
    args: PlanArgs,
    network: Model,
    device: Hardware,
    engine: Engine,
    speculation: Speculation | None,
    dtype: str,
    roles: dict[str, str],
) -> Plan:
    """The layout and limits: what was given, else what the engine, the model or the device does by default."""
    if args.interconnect is not None and args.interconnect not in device.links:
        raise UnknownName("`interconnect`", args.interconnect, tuple(device.links))
    gpus = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    per_node = args.gpus_per_node or parallelism.gpus_per_nvlink_domain(device, gpus)
    quantization = precision.summary(roles, dtype)
    given_cache = _given_cache(args.kv_cache_dtype, engine, dtype)
    return Plan(
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        data_parallel_size=args.data_parallel_size,
        decode_context_parallel_size=args.decode_context_parallel_size,
        enable_expert_parallel=args.enable_expert_parallel,
        sequence_parallel=args.sequence_parallel,
        enable_chunked_prefill=args.enable_chunked_prefill,
        overlap=args.overlap,
        micro_batches=args.micro_batches,
        nodes=args.nodes or -(-gpus // per_node),
        gpus_per_node=per_node,
        cpu_offload_bytes=args.cpu_offload_gb * 1e9,
        speculation=speculation,
        lora=parse_lora(args.lora_rank, args.lora_targets, args.lora_adapters, network),
        dtype=dtype,
        quantization=quantization,
        kv_cache_dtype=given_cache
        or network.kv_cache_dtype
        or engine.auto_cache_dtype
        or engine.cache_dtype.get(quantization, dtype),
        attention=args.attention or engine.attention,
        fusion=engine.fusion if args.fusion is None else args.fusion,
        max_model_len=args.max_model_len or network.max_position,
        routing_skew=args.routing_skew,
        power_cap=_power_cap(args.power_cap, device),
        kv_offload=parse_kv_offload(args, engine, device, per_node),
        interconnect=args.interconnect or device.interconnect,
        frontend=args.frontend,  # type: ignore[arg-type]
        **_settings(engine),
    )


def _given_cache(text: str, engine: Engine, dtype: str) -> str:
    """The format of the KV cache that was given, '' for none; one that the engine does not have is refused."""
    if text == "auto":
        return ""
    given = catalog.plain_dtype(text, "`kv_cache_dtype`", catalog.KV_CACHE_FORMATS)
    if engine.kv_cache_dtypes and given not in (*engine.kv_cache_dtypes, dtype):
        allowed = ", ".join(dict.fromkeys(("auto", dtype, *engine.kv_cache_dtypes)))
        raise BadValue(
            f"{engine.label or engine.name} has no KV cache in {given}: `kv_cache_dtype` must be one of {allowed}",
            field="kv_cache_dtype",
        )
    return given


def _check_moe_backend(engine: Engine, network: Model, device: Hardware, roles: dict[str, str]) -> list[str]:
    """A warning where the kernels that were chosen for experts do not multiply theirs."""
    free = msgspec.structs.replace(engine, moe_backend="")
    chosen, own = (precision.computed_as(one, network, device, roles)["experts"] for one in (engine, free))
    if not engine.moe_backend or "mixture" not in _layer_kinds(network) or chosen != own:
        return []
    if any(rule.moe_backend == engine.moe_backend and rule.runs_as == own for rule in engine.compute):
        return []  # the engine chooses the same by itself
    return [
        f"{flag('moe_backend')} {engine.moe_backend} is not modelled for experts in {roles['experts']}: they are taken "
        f"as {engine.label or engine.name} chooses"
    ]


def _check_lengths(args: PlanArgs, plan: Plan, workload: Workload, network: Model) -> list[str]:
    """A warning where sequences outgrow the model; an error where a batch would not run at once."""
    warnings = []
    limit, end = plan.max_model_len, positions_reached(workload, network)
    if limit and end > limit:
        own = f"the model's {limit:,} positions"
        stated = own if args.max_model_len is None else f"{flag('max_model_len')} {limit:,}"
        warnings.append(f"{end:,} tokens are more than {stated}")
    sequences = -(-workload.batch_size // plan.data_parallel_size) * workload.beam_width
    if sequences > plan.max_num_seqs:
        error = BadValue(
            f"{sequences:,} sequences on a replica exceed `max_num_seqs` {plan.max_num_seqs:,}: they "
            "would not all run at once; raise `max_num_seqs` or lower `batch_size`",
            field="batch_size",
        )
        most = plan.max_num_seqs // workload.beam_width * plan.data_parallel_size
        error.remedies = [{"batch_size": most}, {"max_num_seqs": sequences}]
        raise error
    return warnings


@about("efficiency")
def parse_efficiency(value: float | str | Mapping[str, float] | None) -> dict[str, float] | None:
    """``0.6`` or ``flops=0.7,hbm=0.85,intra=0.8,inter=0.7``; each in (0, 1]."""
    if value is None:
        return None
    if isinstance(value, str):
        if "=" not in value:
            value = _fraction("`efficiency`", value)
        else:
            pairs = [piece.partition("=") for piece in value.split(",")]
            value = {key.strip(): _fraction(f"`efficiency` {key}", number) for key, _, number in pairs}
    if isinstance(value, int | float) and is_number(value):
        value = dict.fromkeys(_FACTORS, float(value))
    if not isinstance(value, Mapping):
        raise BadValue(f"`efficiency` must be a number in (0, 1] or flops=…,hbm=…,intra=…,inter=…, not {value!r}")
    for key, factor in value.items():
        if key not in _FACTORS:
            raise UnknownName("efficiency", key, _FACTORS, field="efficiency")
        if not is_number(factor) or not LEAST_EFFICIENCY <= factor <= 1:
            raise BadValue(
                f"`efficiency` {key} must be a number from {LEAST_EFFICIENCY:g} to 1, not {abbreviate(factor)}"
            )
    return dict(value)


def _fraction(what: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadValue(f"{what} must be a number in (0, 1], not {text!r}") from None
