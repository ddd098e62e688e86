"""The nouns of a request, as frozen structs without logic: hardware, engine, precision, workload, plan.

Units are SI (bytes, seconds, FLOP/s). What a file may say is what these structs have.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all specs: keyword-only, immutable, strict about unknown keys."""


class Link(Spec, frozen=True, kw_only=True):
    """One way out of a device: ``Link(bandwidth=450e9, latency=2e-6, devices=8)``"""

    bandwidth: float  # bytes/s per device, one direction
    latency: float = 5e-6  # s of start-up per hop
    devices: int = 8  # how many devices one such domain joins
    peers: int = 0  # links of a mesh or torus that share the bandwidth; 0: a switch, any pair has all of it
    wraparound: int = 0  # devices from which on a torus closes; a slice of fewer uses half of its links; 0: no torus
    peer_to_peer: bool = True  # devices reach each other's memory; False: by way of the host's


MEMORY_KINDS = (
    *("hbm2", "hbm2e", "hbm3", "hbm3e", "hbm4"),
    *("gddr5", "gddr6", "gddr6x", "gddr7"),
    *("lpddr4x", "lpddr5", "lpddr5x", "ddr4", "ddr5"),
)


class Hardware(Spec, frozen=True, kw_only=True):
    """A device, as its data sheet and its driver describe it."""

    name: str = ""
    label: str = ""
    vendor: str = ""
    architecture: str = ""
    aliases: tuple[str, ...] = ()
    memory: float  # bytes that an engine sees: the total of cudaMemGetInfo, a little less than nvidia-smi's
    memory_bandwidth: float  # bytes/s
    memory_kind: str = ""  # what the memory is made of, one of `MEMORY_KINDS`; "" = not known
    flops: dict[str, float]  # dense FLOP/s by number format
    cache: float = 0.0  # bytes of last-level on-chip cache
    compute_units: int = 1
    clock: float = 0.0  # Hz
    power: float = 0.0  # W, at most
    idle_power: float = 0.0  # W at rest; 0: a share of its power (data/power.toml)
    reach_flops: float = 0.0  # share of its FLOP/s that its best bf16 products get, over the 0.803 of an H100
    reach_memory: float = 0.0  # share of its bandwidth that the best kernels get; 0 of either: see data/reach.toml
    throttle: float = 0.0  # share of time more that matrix work takes once the power limit has lowered the clocks
    throttle_after: float = 0.1  # s until most of that is felt
    throttle_memory: float = 0.0  # share of time more that decode steps take then, while the heat of prompts lasts
    throttle_decode: float = 0.55  # share of peak FLOP/s in a decode step from which on it feels all of it
    price_per_hour: float = 0.0  # USD
    gpus_per_node: int = 8
    interconnect: str = "pcie"  # which of `links` joins the devices of a node
    links: dict[str, Link] = {}
    source: dict[str, str] = {}


class Kernel(Spec, frozen=True, kw_only=True):
    """How well one kind of kernel runs when nothing was measured: seconds = fixed + ‖work/flops, bytes/hbm‖ₚ."""

    flops: float = 1.0  # share of peak FLOP/s that it reaches
    hbm: float = 1.0  # share of peak bandwidth that it reaches
    link: float = 1.0  # share of link bandwidth that it reaches
    fixed: float = 0.0  # s per call (launch, ramp-up, tail)
    source: str = ""


class ComputeRule(Spec, frozen=True, kw_only=True):
    """How an engine multiplies a precision: ``ComputeRule(precision="mxfp4", runs_as="mxfp4-mxfp8")``"""

    precision: str  # of the weights, as they are stored
    runs_as: str  # the precision whose kernels it runs
    model_types: tuple[str, ...] = ()  # of these models only; () = of all
    vendors: tuple[str, ...] = ()  # on devices of these only; () = on all
    architectures: tuple[str, ...] = ()  # on devices of these only; () = on all
    roles: tuple[str, ...] = ()  # of these groups of weights only; () = of all
    moe_backend: str = ""  # where experts are given to these kernels only; '' = also where the engine chooses
    version_below: str = ""  # by releases before this one
    source: str = ""


class ExpertKernel(Spec, frozen=True, kw_only=True):
    """How the kernel that an engine takes for experts wants them: ``ExpertKernel(precision="mxfp4", hidden=256)``"""

    precision: str  # of the weights, as they are stored
    architectures: tuple[str, ...] = ()  # of devices on which the engine takes it
    moe_backend: str = ""  # where experts are given to these kernels only; '' = also where the engine chooses
    hidden: int = 1  # sizes are rounded up to multiples of these
    inner: int = 1
    bias_bytes: float = 0.0  # of an element; 0 = as activations
    workspace: bool = False  # its intermediate results have a place of their own, which is kept
    source: str = ""


GraphSizes = tuple[tuple[int, int], ...]  # (up to so many tokens, every so many)


class Rule(Spec, frozen=True, kw_only=True, omit_defaults=True):
    """Defaults that an engine has under some conditions; ``specs/engine_rules.py`` says how rules are read.

    ``Rule(memory_at_least=70 * 2**30, not_named=("a100",), set={"max_num_batched_tokens": 8192})``
    """

    # figure of the engine -> value, a formula as text, or entries of a table that stand over its own
    set: dict[str, bool | int | float | str | list[list[int] | str] | dict[str, float]]
    why: str = ""  # the conditions in words
    source: str = ""
    version_at_least: str = ""
    version_below: str = ""
    memory_at_least: float = 0.0  # bytes of one device
    memory_below: float = float("inf")
    named: tuple[str, ...] = ()  # parts of a device's name or label, in small letters: it has one of them
    not_named: tuple[str, ...] = ()  # it has none of them
    architectures: tuple[str, ...] = ()
    vendors: tuple[str, ...] = ()
    not_vendors: tuple[str, ...] = ()
    attention: tuple[str, ...] = ()  # mla, sparse_mla
    models: tuple[str, ...] = ()  # families, or dense, mixture, hybrid: the model is one of them
    speculation: tuple[str, ...] = ()  # methods
    ranks_at_least: int = 0  # tensor times data parallel
    stages_at_least: int = 0
    data_parallel_at_least: int = 0


class Default(Spec, frozen=True, kw_only=True):
    """A setting that the user did not give: what the engine takes for it here, and why."""

    name: str
    value: bool | int | float | str
    why: str = ""
    source: str = ""


class Engine(Spec, frozen=True, kw_only=True):
    """A serving engine as data. `roofline` is the perfect one: the speed of light."""

    name: str = ""
    label: str = ""
    version: str = ""
    versions: tuple[str, ...] = ()  # whose defaults were checked, rising; the last one is taken unless another is given
    when: tuple[Rule, ...] = ()
    defaults: tuple[Default, ...] = ()  # what was filled in, once version, device and layout are known
    step_overhead: float = 0.0  # s of host time that no kernel hides, per step
    step_floor: float = 0.0  # s that the host needs for a step, hidden while the kernels take longer
    step_floor_per_sequence: float = 0.0  # s more for every sequence of the step
    step_floor_per_state_group: float = 0.0  # s more for every group of recurrent layers: see `costs.host.state_groups`
    graph_sizes: GraphSizes = ()  # captured sizes of steps, which a step is padded to
    graph_tokens: int = 0  # the largest step that is captured as graphs; larger ones are launched kernel by kernel
    prefill_graph_sizes: GraphSizes | None = None  # the same of steps with prompts; None: as without
    prefill_graph_tokens: int | None = None
    graph_padding: bool = True  # false: a decode step between two sizes is launched kernel by kernel
    padded_graph_sizes: GraphSizes = ()  # those of an engine without padding whose graphs have a given limit
    graphs_by_sequence: bool = False  # sizes of decode graphs are sequences; its tp counts data-parallel ranks, too
    side_stream_tokens: int = 0  # steps of up to so many tokens run shared experts beside the routed ones
    launches: dict[
        str, float
    ] = {}  # launches of one operator of a kind, in those of the host; `other`: kinds not named
    launch: dict[str, float] = {}  # s of them on the plan's host (specs/hosts.py)
    host: str = ""  # the host that these and the other host times are of
    host_launch: float = 0.0  # s of one launch there
    request_overhead: float = 0.0  # s per request in the engine's own front end
    http_overhead: float = 0.0  # s per request more when the client speaks HTTP
    token_overhead: float = 0.0  # s per token of the prompt more then: its text is made into tokens, one at a time
    memory_utilization: float = 0.9  # default of gpu_memory_utilization
    memory_share_of: Literal["device", "static", "free"] = "device"  # see inference/memory.py: usable_bytes
    static_reserve: float = 0.0  # bytes that a formula for the static share leaves to activations and graphs
    memory_reserve: float = 0.0  # bytes that are neither weights, KV nor activations (context, graphs, workspaces)
    max_split_size: float = 0.0  # bytes from which on blocks are not split while weights are loaded; 0 = all are split
    rope_table_bytes: float = 0.0  # of an element of its tables of cosines and sines of all positions; 0 = it has none
    online_quantization: tuple[str, ...] = ()  # formats that it rounds 16-bit checkpoints to while it loads them
    expert_kernels: tuple[ExpertKernel, ...] = ()  # the first that holds; other experts are kept as they are
    live_streams: float = 1.0  # tensors of a hidden state's size that are alive while a layer runs
    sampler_bytes: float = 0.0  # bytes of every logit while tokens are sampled, besides the logits themselves
    expert_workspace: bool = False  # intermediate results of experts have a place of their own, which is kept
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    block_size: int = 16
    scheduler: str = "vllm"  # how it chooses the requests of a step: a name of serving/schedulers
    prefix_caching: bool = False
    cache_dtype: dict[str, str] = {}  # precision of the weights -> of the KV cache, where its checkpoints say so
    auto_cache_dtype: str = ""  # of the KV cache where neither the user nor the model says one; '' = by `cache_dtype`
    kv_cache_groups: bool = False  # layers with and without windows share blocks in groups of equal size, as in vLLM
    kv_cache_dtypes: tuple[str, ...] = ()  # formats that it can keep a KV cache in besides the model's; () = any
    fp8_ds_mla: tuple[str, ...] = ()  # architectures and devices on which sparse latents in fp8 are packed with scales
    compute: tuple[ComputeRule, ...] = ()  # the first that holds; without one a precision runs as it says itself
    moe_backend: str = ""  # the kernels that it was told to give experts to; '' = it chooses
    async_scheduling: bool = False  # a step is planned while the one before it runs
    launches_before_results: bool = False  # the next step is launched before the last one's results are looked at
    load_steps: int = 0  # steps after which it sees that blocks have come from a tier, where it schedules ahead
    results_after_launches: bool = False  # by the thread that launches the next step while this one computes
    profile_run: bool = False  # reserves the activations of its largest step, whatever the workload
    attention: Literal["flash", "eager"] = "flash"
    fusion: bool = False  # element-wise operators ride on their neighbours: no traffic, no launch
    smooth: float = 3.0  # p of the norm that joins compute and memory time; large = a hard maximum
    kernels: dict[str, Kernel] = {}
    kernels_from: str = ""  # the one device that the kernels' shares of peak were seen on
    profile: str = ""  # the measured kernels that it runs: a file name under data/profiles/<device>
    profile_kinds: tuple[str, ...] = ()  # of those, the kinds that it runs; () = all
    delta_rule: Literal["constant", "flashinfer", "triton"] = "constant"  # whose kernels run gated delta nets' prompts
    row_tiles: bool = False  # its products take their rows in the tiles of that profile: the very same kernels
    prefill_factor: float = 1.0  # on the seconds of prompts' tokens, from a calibration
    decode_factor: float = 1.0  # on the seconds of answers' tokens
    mixed_factor: float = 1.0  # a further one on steps that have both
    eager_factor: float = 1.0  # a further one on decode steps outside of CUDA graphs
    source: dict[str, str] = {}

    @property
    def moe_backends(self) -> tuple[str, ...]:
        """The kernels for experts that a user can choose: ``catalog.engine("vllm").moe_backends  # ("marlin",)``"""
        return tuple(dict.fromkeys(rule.moe_backend for rule in self.compute if rule.moe_backend))


class HostedEngine(Spec, frozen=True, kw_only=True):
    """Seconds that one engine takes on one host, where they were seen there; what is None follows from the host."""

    step_overhead: float | None = None
    step_floor: float | None = None
    step_floor_per_sequence: float | None = None
    step_floor_per_state_group: float | None = None
    request_overhead: float | None = None
    http_overhead: float | None = None
    token_overhead: float | None = None
    launch: dict[str, float] = {}
    launch_factor: float = 1.0  # on the host's time of launches from compiled code that are not in `launch`


class Figure(Spec, frozen=True, kw_only=True):
    """One measured figure of a machine, and what predictions take it for: ``Figure(value=4.2e12, unit="B/s")``"""

    value: float
    unit: str
    reference: float | None = None  # of the machine that the shipped figures were measured on


class Host(Spec, frozen=True, kw_only=True):
    """What feeds a device: ``Host(launch=4e-6)``. Engines say how much there is to do, hosts how long it takes."""

    name: str = ""
    label: str = ""
    launch: float  # s to launch one small kernel from PyTorch, one after another
    slowdown: float = 1.0  # time of a single thread of Python against the host that engine files are written for
    engines: dict[str, HostedEngine] = {}  # engine -> what was seen of it on this very host
    device: str = ""  # what it feeds, in the driver's words; "": not measured with it
    machine: dict[str, str] = {}  # the device's UUID, driver, versions, date
    figures: dict[str, Figure] = {}  # of host and device, by name: what `profile --quick` measures
    source: dict[str, str] = {}


class Calibration(Spec, frozen=True, kw_only=True):
    """What a user's own measurements say about predictions: factors and a time, and how good they are."""

    prefill: float = 1.0  # measured over predicted seconds of prompts' tokens
    decode: float = 1.0  # the same of answers' tokens
    mixed: float = 1.0  # a further factor on steps that compute prompts while sequences decode
    eager: float = 1.0  # a further factor on decode steps that no CUDA graph was captured for
    host: float = 1.0  # on what the host takes to plan and launch a step, whether kernels hide it or not
    request: float = 0.0  # s that a request takes more
    model: str = ""
    gpu: str = ""
    engine: str = ""
    version: str = ""  # of the engine
    precision: str = ""  # of weights, and of the KV cache where it is another than the model's: fp8, KV fp8
    measured: str = ""  # the file that it was made from
    requests: int = 0
    steps: int = 0  # of a step log, where it was made from one
    # metric, or class of step -> mean absolute relative error before, after, and on rows or steps that it did not see
    error: dict[str, dict[str, float]] = {}


class FlagUse(msgspec.Struct, kw_only=True):
    """A flag of the command, and what becomes of it."""

    flag: str  # as it is typed
    value: str = ""  # as it is typed; secrets are left out
    status: str = "understood"  # or no effect, not modelled, unknown
    argument: str = ""  # of a plan, that it sets
    note: str = ""  # why, or what is meant


class ServerCommand(msgspec.Struct, kw_only=True):
    """A server's command as a plan: its engine, model and arguments, and every flag of it."""

    engine: str
    version: str = ""  # of the engine, where an image says it
    model: str = ""
    arguments: dict[str, Any] = {}  # of a plan: {"tensor_parallel_size": 4}
    flags: list[FlagUse] = []  # all that it has, in its order


class Precision(Spec, frozen=True, kw_only=True):
    """A way to store and multiply numbers: ``bits`` per weight incl. its share of the group's scales."""

    name: str = ""
    label: str = ""
    bits: float
    scale_bits: float = 0.0
    group: float = 0.0  # weights that share one scale; 0 = per tensor or channel
    compute: tuple[str, ...] = ()  # formats it multiplies in, best first; () = the model's own dtype
    activation_bits: float = 16.0  # of a linear layer's input when computing in the first of `compute`
    units: str = ""  # a format that the device must have besides: its units take the two sides in different formats
    without_units: str = ""  # the precision whose kernels run where the device can compute in none of `compute`
    suffixes: tuple[str, ...] = ()  # what the names of checkpoints in it end in
    source: str = ""

    @property
    def bytes(self) -> float:
        """Stored bytes per weight, scales included."""
        return (self.bits + (self.scale_bits / self.group if self.group else 0.0)) / 8


class Turn(Spec, frozen=True, kw_only=True):
    """One prompt and its answer in a conversation."""

    input_len: int
    output_len: int


class Image(Spec, frozen=True, kw_only=True):
    """Images in every request: ``Image(count=1, height=896, width=896)``"""

    count: int = 1
    height: int
    width: int


class Workload(Spec, frozen=True, kw_only=True):
    """The requests of a batch: how many, and how long."""

    batch_size: int = 1
    input_len: int | tuple[int, ...] = 1024  # one number, or one per layer (token pruning)
    output_len: int = 128
    prefix_len: int = 0  # leading input tokens that are already in the KV cache
    beam_width: int = 1
    turns: tuple[Turn, ...] = ()
    images: Image | None = None
    num_inference_steps: int = 0  # denoising steps of an image; 0 = not of a diffusion model


class Speculation(Spec, frozen=True, kw_only=True):
    """Speculative decoding: the drafting method, how many tokens it drafts, and how many are accepted."""

    method: Literal["draft_model", "ngram", "mtp"] = "draft_model"
    model: str = ""
    num_speculative_tokens: int = 3
    acceptance_length: float = 0.0  # tokens per step, the bonus token included
    source: str = ""


class Lora(Spec, frozen=True, kw_only=True):
    """Low-rank adapters on some of the products."""

    rank: int
    targets: tuple[str, ...]
    adapters: int = 1  # different ones in a batch


class KVTier(Spec, frozen=True, kw_only=True):
    """A place for the KV blocks of a replica below the GPU's memory, and the link from the tier above."""

    name: str  # cpu, disk or shared
    size: float = 0.0  # bytes; of a shared store: of all replicas together
    size_per_gpu: float = 0.0  # instead: bytes for each GPU of a replica
    gpu_ratio: float = 0.0  # instead: times what the GPUs' KV cache holds
    read_bandwidth: float  # B/s for each GPU of a replica, towards the GPU
    write_bandwidth: float  # B/s, away from it
    latency: float = 0.0  # s of one transfer
    page_latency: float = 0.0  # s beyond its bytes for each page that a GPU copies, a block of one layer
    triton_below: float = 0.0  # bytes of a page; smaller ones are read by a kernel, which has no such time
    concurrency: int = 1  # transfers at once, whose latencies overlap
    duplex: bool = True  # reads do not slow writes down


class KVOffload(Spec, frozen=True, kw_only=True):
    """The tiers below the GPU's KV cache, nearest first, and when blocks are stored there."""

    tiers: tuple[KVTier, ...]  # nearest first
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = "write_through"  # SGLang's words
    backend: str = ""  # native or lmcache (vLLM); SGLang's storage backend
    prefix_tier: str = ""  # where the cached prefix of an analysis is; empty: on the GPU
    prompt_only: bool = False  # what is generated is stored only when a later prompt has it


class Plan(Spec, frozen=True, kw_only=True):
    """How the model is laid out and run."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    sequence_parallel: bool = False
    decode_context_parallel_size: int = 1
    micro_batches: int = 0  # 0: as many as there are stages
    nodes: int = 1
    gpus_per_node: int = 8
    interconnect: str = ""
    dtype: str = "bf16"
    quantization: str = "bf16"
    kv_cache_dtype: str = "bf16"
    attention: str = "flash"
    fusion: bool = False
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int = 0  # 0: the model's own limit
    gpu_memory_utilization: float = 0.9
    block_size: int = 16
    routing_skew: float = 0.0
    enable_chunked_prefill: bool = False
    overlap: float = 0.0  # share of communication that can run behind computing
    cpu_offload_bytes: float = 0.0
    speculation: Speculation | None = None
    lora: Lora | None = None
    frontend: Literal["in-process", "http"] = "in-process"
    power_cap: float = 0.0  # W of each GPU; 0: its own limit
    kv_offload: KVOffload | None = None  # tiers below the GPU's KV cache

    @property
    def gpus(self) -> int:
        """Devices in all."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def formats(self) -> str:
        """Of weights, and of the KV cache where it is another than the model's: ``fp8, KV fp8``"""
        kv = "" if self.kv_cache_dtype == self.dtype else f", KV {self.kv_cache_dtype}"
        return f"{self.quantization}{kv}"


class AgentProfile(Spec, frozen=True, kw_only=True):
    """How the sessions of some kind of agent go; a figure is a number or a distribution, as ``input_len`` is."""

    name: str = ""
    label: str = ""
    turns: float | str = 20  # of the main agent, in a session
    system_tokens: int = 4000  # system prompt and tools, which all sessions begin with
    task_tokens: float | str = 1000  # of the first prompt, after that
    growth: float | str = 1000  # tokens that a tool's result or a user adds to the prompt, each turn
    output_len: float | str = 300
    tool_wait: float | str = 5  # s from an answer to the next turn
    spawn_share: float = 0.0  # of turns that start sub-agents, and wait for all of them before the next
    subagents: float | str = 3  # started at once
    subagent_turns: float | str = 8
    subagent_system_tokens: int = 4000  # that all sub-agents begin with
    subagent_growth: float | str = ""  # empty: as the main agent's
    context_limit: int = 128_000  # tokens of a prompt at which the history is summed up
    compacted_tokens: int = 10_000  # that are left of it then, behind the system prompt
    reuse: float = 1.0  # share of turns whose history is as it was; in others all behind the system prompt is new
    source: str = ""


class Usecase(Spec, frozen=True, kw_only=True):
    """A typical kind of request and what its users expect."""

    name: str = ""
    label: str
    input_len: int
    output_len: int
    batch_size: int = 1
    beam_width: int = 1
    ttft: float  # s that users wait for the first token
    tpot: float  # s per token that feels right
    source: str = ""
