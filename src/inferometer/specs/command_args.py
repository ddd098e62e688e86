"""The arguments of commands beyond one plan: traffic, serving, goodput, search, sensitivity, measuring."""

# Annotations are looked at while the program runs: no postponed evaluation here.
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from .arguments import Args, arg
from .plan_args import EngineArgs

_LENGTH = "a number, or a distribution: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…"


class TrafficArgs(Args):
    """Where requests come from: a trace, or synthetic requests."""

    GROUP: ClassVar[str] = "Requests"
    trace: Annotated[
        str | None,
        arg("Requests from a trace, a log or a benchmark result: CSV, JSON or Parquet; .gz too.", metavar="FILE"),
    ] = None
    columns: Annotated[
        str | Mapping[str, str] | None,
        arg(
            "Map the file's column names: input_tokens=n_in,output_tokens=n_out.",
            metavar="OURS=THEIRS,…",
        ),
    ] = None
    run: Annotated[int | None, arg("Which run to take from a file with several; 1 is the first.", metavar="N")] = None
    num_prompts: Annotated[
        int | None, arg("Number of requests; from a trace, the first N.", default_text="1000, or all")
    ] = None
    request_rate: Annotated[
        float | None,
        arg(
            "Requests per second; inf: all at once. A trace is stretched to this rate.",
            default_text="inf, or the trace's",
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        arg(
            "1: Poisson arrivals; below 1: burstier; above 1: more even.", default_text="1, or the trace's own arrivals"
        ),
    ] = None
    input_len: Annotated[int | str | None, arg(f"Prompt tokens: {_LENGTH}.", default_text="1024", metavar="N|DIST")] = (
        None
    )
    output_len: Annotated[
        int | str | None, arg("Output tokens: a number or a distribution.", default_text="128", metavar="N|DIST")
    ] = None
    prefix_len: Annotated[int, arg("Prompt tokens that all requests share (a common prefix).")] = 0
    turns: Annotated[
        int | str | None, arg("Turns per conversation; each turn adds --input-len tokens.", metavar="N|DIST")
    ] = None
    think_time: Annotated[
        float | str | None, arg("Seconds between a response and the user's next request.", metavar="S|DIST")
    ] = None
    max_concurrency: Annotated[int | None, arg("Requests in flight, at most; a new one starts when another ends.")] = (
        None
    )
    seed: Annotated[int, arg("Random seed.")] = 0


class SessionArgs(Args):
    """Sessions of agents and of people, whose turns wait for each other."""

    GROUP: ClassVar[str] = "Sessions"
    agents: Annotated[
        str | Mapping[str, Any] | None,
        arg(
            "Agent sessions instead of single requests: coding-agent, research-agent, chat, with changes: "
            "coding-agent,turns=30,tool_wait=2. --request-rate is that of new sessions.",
            metavar="NAME[,KEY=VALUE,…]",
        ),
    ] = None
    like: Annotated[
        str | None, arg("Agent sessions like those of a trace: its figures are fitted.", metavar="FILE")
    ] = None
    num_sessions: Annotated[
        Annotated[int, arg("", ge=1, le=10**7)] | None,
        arg("Sessions to generate, or the first N of the trace.", default_text="100, or all"),
    ] = None
    concurrent_sessions: Annotated[
        Annotated[int, arg("", ge=1, le=10**7)] | None,
        arg("Sessions at once, at most; a new one begins when another has ended."),
    ] = None
    max_idle: Annotated[
        Annotated[float, arg("", ge=0, le=1e9)] | None,
        arg("Longest wait between turns of a session, in seconds; longer ones are cut.", metavar="S"),
    ] = None
    warm_cache: Annotated[
        float | str | None,
        arg(
            "Begin with warm caches: shared (what several sessions begin with), or the share of the sessions that are "
            "under way at the start, with their history in the cache: 0.5.",
            default_text="cold",
            metavar="shared|SHARE",
        ),
    ] = None


class SessionSearchArgs(SessionArgs):
    """What a search for sessions tries beside servers: routers; and tiers that all plans have."""

    GROUP: ClassVar[str] = "Sessions"
    router: Annotated[
        str | Sequence[str] | None,
        arg("Routers to try, those of simulate.", default_text="session_affinity,prefix_aware", metavar="WORD,…"),
    ] = None
    kv_tiers: Annotated[
        str | Iterable[str] | Mapping[str, Any] | None,
        arg("Tiers that all plans have: disk:size=2000,read=6 (GiB, GB/s).", metavar="TIER:KEY=VALUE,…", several=True),
    ] = None


class ServedPlanArgs(EngineArgs):
    """A plan that is served: everything of one but its workload, which comes from the requests."""

    GROUP: ClassVar[str] = "Engine"
    frontend: Annotated[
        str,
        arg(
            "Where latency is measured: in the engine's process, or at an HTTP client.", choices=("in-process", "http")
        ),
    ] = "http"


class ServingArgs(ServedPlanArgs):
    """How an engine serves many requests: its scheduler, cache and replicas; the keywords of `simulate`."""

    GROUP: ClassVar[str] = "Serving"
    scheduler: Annotated[
        str | None,
        arg("Scheduler: vllm, sarathi, prefill_first, trtllm or static.", default_text="engine default"),
    ] = None
    policy: Annotated[str, arg("Order of waiting requests: fcfs, or priority (a column of the trace).")] = "fcfs"
    enable_prefix_caching: Annotated[
        bool | None,
        arg("Reuse the KV cache of prompts that share a prefix.", default_text="engine default"),
    ] = None
    long_prefill_token_threshold: Annotated[
        int, arg("Longest chunk of a prompt per step, in tokens; 0: no limit.", ge=0, le=10**9)
    ] = 0
    prefill_schedule_interval: Annotated[
        int,
        arg("Steps between steps with prefills, for MoE models with data parallelism (vLLM).", ge=1, le=10**9),
    ] = 1
    prefill_max_requests: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg("Prompts prefilled per step, at most (SGLang).", default_text="no limit"),
    ] = None
    scheduler_recv_interval: Annotated[
        int, arg("Decode steps between polls for new requests (SGLang).", ge=1, le=10**9)
    ] = 1
    batch_wait_timeout_iters: Annotated[
        int, arg("Steps that prompts wait to be batched while others decode (TensorRT-LLM).", ge=0, le=10**9)
    ] = 0
    batch_wait_max_tokens_ratio: Annotated[
        float,
        arg(
            "Share of the token budget at which waiting prompts start early (TensorRT-LLM).", ge=0, le=1, ends="0 and 1"
        ),
    ] = 0.0
    attention_dp_timeout_iters: Annotated[
        int, arg("Steps that prompts wait until every attention-DP rank has one (TensorRT-LLM).", ge=0, le=10**9)
    ] = 0
    attention_dp_batching_wait_iters: Annotated[
        int, arg("Further steps to wait for more prompts after that (TensorRT-LLM).", ge=0, le=10**9)
    ] = 0
    api_server_count: Annotated[int, arg("API servers; each tokenizes one prompt at a time.", ge=1, le=10**5)] = 1
    num_gpu_blocks_override: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg("KV cache blocks per replica.", default_text="what fits"),
    ] = None
    router: Annotated[
        str,
        arg("How requests are routed to replicas (-dp): round_robin, least_loaded, prefix_aware, session_affinity."),
    ] = "round_robin"
    prefill_replicas: Annotated[int | None, arg("Disaggregated serving: number of prefill replicas.")] = None
    decode_replicas: Annotated[int | None, arg("Disaggregated serving: number of decode replicas.")] = None
    autoscale: Annotated[
        str | Mapping[str, Any] | None,
        arg(
            "Scale replicas with the load: target=24 (requests per replica, running and waiting), "
            "startup=90 (s), min=1, max=8, initial=1, period=15, stabilization=300 (s).",
            metavar="KEY=VALUE,…",
        ),
    ] = None


class GoodputArgs(Args):
    """The latency limits of a good request."""

    GROUP: ClassVar[str] = "Results"
    goodput: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg("Latency limits in ms that a good request meets: ttft:500,tpot:50.", metavar="METRIC:MS", several=True),
    ] = None


class TierSizesArgs(Args):
    """The same requests with several sizes of CPU memory."""

    GROUP: ClassVar[str] = "Results"
    kv_offloading_sizes: Annotated[
        str | Sequence[float] | None,
        arg("Simulate without and with each --kv-offloading-size (GiB), and compare.", metavar="GIB,…"),
    ] = None


class CapacityArgs(Args):
    """The highest rate that meets the limits, and where its simulations run."""

    GROUP: ClassVar[str] = "Results"
    find_capacity: Annotated[bool, arg("Find the highest --request-rate that still meets --goodput.")] = False
    goodput_share: Annotated[float, arg("Share of requests that must meet the limits.")] = 0.9
    backend: Annotated[str, arg("Where simulations run: processes, dask or ray.")] = "processes"
    backend_address: Annotated[
        str | None,
        arg("Address of a Dask or Ray cluster.", default_text="INFEROMETER_BACKEND_ADDRESS, or one on this machine"),
    ] = None
    jobs: Annotated[
        int | None, arg("Simulations to run in parallel.", default_text="one per core, or the cluster's slots")
    ] = None


class SweepPartsArgs(Args):
    """A sweep as a folder of part files: where its parts are computed, and which of them."""

    GROUP: ClassVar[str] = "Parts of -o DIR/"
    resume: Annotated[bool, arg("Compute only the parts that are still missing.")] = False
    shard: Annotated[
        str | None, arg("Compute only every N-th part, starting at part I: for array jobs.", metavar="I/N")
    ] = None
    backend: Annotated[str, arg("Where parts are computed: processes, dask or ray.")] = "processes"
    backend_address: Annotated[
        str | None,
        arg("Address of a Dask or Ray cluster.", default_text="INFEROMETER_BACKEND_ADDRESS, or one on this machine"),
    ] = None
    jobs: Annotated[
        int | None, arg("Parts to compute in parallel.", default_text="one, on all cores, or the cluster's slots")
    ] = None


class SearchTrafficArgs(Args):
    """The GPUs of a search, and the load that they must serve."""

    GROUP: ClassVar[str] = "Target"
    num_gpus: Annotated[int | None, arg("GPUs available, of each type.", default_text="--nodes, or one node")] = None
    nodes: Annotated[int | None, arg("Nodes available, instead of --num-gpus.")] = None
    gpus_per_node: Annotated[int | None, arg("GPUs per node.", default_text="from the GPU's data")] = None
    input_len: Annotated[
        int | float | str | None,
        arg("Prompt tokens: a number or a distribution.", default_text="1024", metavar="N|DIST"),
    ] = None
    output_len: Annotated[
        int | float | str | None,
        arg("Output tokens: a number or a distribution.", default_text="128", metavar="N|DIST"),
    ] = None
    prefix_len: Annotated[int, arg("Prompt tokens that all requests share (a common prefix).")] = 0
    request_rate: Annotated[
        float | str | None,
        arg(
            "Requests per second to serve; a trace is stretched to this rate. max: find the highest.",
            default_text="the trace's, or max",
            metavar="R|max",
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        arg(
            "1: Poisson arrivals; below 1: burstier; above 1: more even.", default_text="1, or the trace's own arrivals"
        ),
    ] = None
    goodput: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg("Latency limits in ms that a good request meets: ttft:500,tpot:50.", metavar="METRIC:MS", several=True),
    ] = None
    goodput_share: Annotated[float, arg("Share of requests that must meet the limits.")] = 0.9
    objective: Annotated[str, arg("What to optimise: throughput, cost, latency or energy.")] = "throughput"


class SearchLoadArgs(SearchTrafficArgs):
    """Load that varies over a trace."""

    GROUP: ClassVar[str] = "Load over time"
    window: Annotated[
        float | None,
        arg(
            "Length of the time windows, in seconds, that are sized one by one; 0: none.",
            default_text="from the trace, if its load varies",
            metavar="S",
        ),
    ] = None
    autoscale: Annotated[
        str | Mapping[str, Any] | None,
        arg(
            "Also simulate an autoscaler: target=24 (requests per replica, running and waiting), startup=90 (s), "
            "min=1, max=8, period=15, stabilization=300 (s), policy=hpa.",
            default_text="derived from the windows",
            metavar="KEY=VALUE,…",
        ),
    ] = None


class SearchSpaceArgs(SearchLoadArgs):
    """What a search tries: one value or several each."""

    GROUP: ClassVar[str] = "Space"
    mode: Annotated[str, arg("aggregated, disaggregated (separate prefill and decode pools) or both.")] = "both"
    tensor_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Tensor-parallel sizes to try.", default_text="all that are legal", short="-tp", metavar="N,…"),
    ] = None
    pipeline_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Pipeline-parallel sizes to try.", default_text="all", short="-pp", metavar="N,…"),
    ] = None
    data_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Data-parallel sizes to try, for MoE models.", default_text="all", short="-dp", metavar="N,…"),
    ] = None
    enable_expert_parallel: Annotated[
        bool | Sequence[bool] | None, arg("Try with or without expert parallelism.", default_text="both", kind="switch")
    ] = None
    quantization: Annotated[
        str | Sequence[str] | None,
        arg("Weight formats to try.", default_text="the checkpoint's, and fp8 if fast", short="-q", metavar="WORD,…"),
    ] = None
    kv_cache_dtype: Annotated[
        str | Sequence[str] | None, arg("KV cache formats to try.", default_text="auto,fp8", metavar="WORD,…")
    ] = None
    max_num_batched_tokens: Annotated[
        int | str | Sequence[int] | None,
        arg("Token budgets of a step to try.", default_text="2048:16384:x2 and the engine's", metavar="N,…"),
    ] = None
    max_num_seqs: Annotated[
        int | str | Sequence[int] | None,
        arg("Limits of sequences per step to try.", default_text="32:512:x2 and the engine's", metavar="N,…"),
    ] = None
    kv_offloading_size: Annotated[
        int | float | str | Sequence[float] | None,
        arg("GiB of CPU memory for KV blocks of a replica to try; 0: none.", default_text="0", metavar="GIB,…"),
    ] = None
    speculative_config: Annotated[
        str | Mapping[str, Any] | None,
        arg('Speculative decoding: {"method": "mtp", "num_speculative_tokens": 1, …}', metavar="JSON"),
    ] = None
    finalists: Annotated[int, arg("Plans to simulate, at most, once one meets the limits.")] = 6


class SearchArgs(SearchSpaceArgs):
    """What is the same for all plans of a search; with the groups before it, the keywords of `search`."""

    GROUP: ClassVar[str] = "Setting"
    engine: Annotated[str | None, arg("Engine: vllm, sglang or trtllm.", default_text="vllm", offered="engines")] = None
    power_cap: Annotated[
        float | None,
        arg("Power limit per GPU, in watts; clocks drop to stay within it.", default_text="the GPU's own", metavar="W"),
    ] = None
    frontend: Annotated[str, arg("Where latency is measured: in-process or http.", choices=("in-process", "http"))] = (
        "http"
    )
    dtype: Annotated[str, arg("Format of activations and unquantised weights: bf16, fp16.")] = "auto"
    interconnect: Annotated[
        str | None, arg("Link between the GPUs of a node: nvlink, pcie …", default_text="the fastest")
    ] = None
    efficiency: Annotated[
        float | str | Mapping[str, float] | None,
        arg("Fixed share of peak for every kernel: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7.", metavar="X"),
    ] = None
    profile: Annotated[
        str | None, arg("Measurements from inferometer profile: kernels (.csv) or a machine (.toml).", metavar="FILE")
    ] = None
    calibration: Annotated[
        str | None, arg("Correction fitted to your measurements by validate --write-calibration.", metavar="FILE")
    ] = None
    gpu_memory_utilization: Annotated[
        float | None, arg("Memory fraction that the engine takes.", default_text="engine default")
    ] = None
    routing_skew: Annotated[float, arg("How unevenly experts are chosen: 0 is uniform, 1 always the same experts.")] = (
        0.0
    )
    moe_backend: Annotated[str | None, arg("Kernels for experts: marlin (vLLM).", default_text="engine default")] = None
    mamba_ssm_cache_dtype: Annotated[str | None, arg("Format of recurrent states.", default_text="the model's")] = None
    assume_decoder: Annotated[bool, arg("Treat a model of unknown structure as a Llama-like decoder.")] = False
    hf_token: Annotated[str | None, arg("Hugging Face token for gated models; or set HF_TOKEN.", secret=True)] = None
    backend: Annotated[str, arg("Where simulations run: processes, dask or ray.")] = "processes"
    jobs: Annotated[int | None, arg("Simulations to run in parallel.", default_text="1, or the cluster's slots")] = None
    seed: Annotated[int, arg("Random seed.")] = 0


class SensitivityArgs(Args):
    """The questions of `sensitivity`."""

    GROUP: ClassVar[str] = "Question"
    target: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg(
            "The value of each hardware figure that alone reaches the target: tpot:20 "
            "(ms), ttft, e2el, throughput, cost, energy.",
            metavar="METRIC:VALUE",
            several=True,
        ),
    ] = None
    size: Annotated[bool, arg("The smallest platform (GPUs × layout) that fits the model and meets --target.")] = False
    compare: Annotated[
        str | Iterable[str] | None,
        arg(
            "Other models on this machine: how much slower, and what hardware would make up for it.", metavar="MODEL,…"
        ),
    ] = None
    compare_usecases: Annotated[bool, arg("What each use case in the catalogue demands of the machine.")] = False


class ProfileArgs(Args):
    """Which layers of a model are timed, and how often."""

    GROUP: ClassVar[str] = "Layers of a model"
    num_layers: Annotated[int, arg("Layers to build and time.")] = 1
    hardware: Annotated[
        str | None, arg("Name of the machine, written in each row.", default_text="the device's", metavar="LABEL")
    ] = None
    mode: Annotated[str, arg("Phases to time: prefill, decode or both.")] = "both"
    warmup: Annotated[int, arg("Untimed warm-up passes per length.")] = 10
    repeat: Annotated[int, arg("Timed passes per length; the median is written.")] = 100
    prefill_max: Annotated[int, arg("Longest prompt, in tokens.")] = 2048
    decode_max: Annotated[int, arg("Longest context of a decode step, in tokens.")] = 2048
    step: Annotated[
        int | None, arg("Tokens between long lengths; shorter lengths double.", default_text="1/16 of the longest")
    ] = None
    hf_token: Annotated[str | None, arg("Hugging Face token for gated models; or set HF_TOKEN.", secret=True)] = None
    calibrate: Annotated[bool, arg("Also run the whole model, and scale the rows to its wall time.")] = False
    scaling_num_layers: Annotated[
        int | None, arg("Calibration: layers of the whole model.", default_text="all that fit")
    ] = None
    scaling_input_min: Annotated[int, arg("Calibration: shortest prompt, in tokens.")] = 128
    scaling_input_max: Annotated[int, arg("Calibration: longest prompt, in tokens.")] = 1024
    scaling_input_step: Annotated[int, arg("Calibration: tokens between prompt lengths.")] = 128
    scaling_repeat: Annotated[int, arg("Calibration: runs per length; the median counts.")] = 3
    force: Annotated[bool, arg("Write scaled rows even if noise makes the factors useless.")] = False


class BenchArgs(Args):
    """A live server, and how to send requests to it."""

    GROUP: ClassVar[str] = "Server"
    served_model_name: Annotated[
        str | None, arg("Name under which the server knows the model.", default_text="--model")
    ] = None
    api: Annotated[str, arg("API to call: completions (prompts as token ids) or chat (prompts as text).")] = (
        "completions"
    )
    prompt_text: Annotated[bool, arg("Send text to completions as well, for servers that accept no token ids.")] = False
    timeout: Annotated[float, arg("Seconds to wait for one complete response.")] = 600.0
    extra_body: Annotated[
        str | None, arg('Extra keys for every request: {"top_p": 0.9}; null removes one.', metavar="JSON")
    ] = None
    num_warmups: Annotated[int, arg("Warm-up requests before the run; not counted.", ge=0, le=10**6)] = 0
    ramp_up_strategy: Annotated[
        str | None,
        arg("Increase the rate over the run: linear or exponential.", choices=("linear", "exponential")),
    ] = None
    ramp_up_start_rps: Annotated[
        Annotated[float, arg("", gt=0, le=1e6)] | None, arg("Requests per second at the start.")
    ] = None
    ramp_up_end_rps: Annotated[
        Annotated[float, arg("", gt=0, le=1e6)] | None, arg("Requests per second at the end.")
    ] = None
    metric_percentiles: Annotated[str, arg("Percentiles of latency to report.", metavar="P,…")] = "90,99"
    percentile_metrics: Annotated[str, arg("Latency metrics whose percentiles are reported.", metavar="METRIC,…")] = (
        "ttft,tpot,itl,e2el"
    )
    save_detailed: Annotated[
        bool, arg("Add per-request lists to --json: ttfts, itls, errors …, with vllm bench serve's keys.")
    ] = False
    label: Annotated[str | None, arg("A label for the run, kept in its result.")] = None


class MockArgs(Args):
    """A mock server: under which name it answers, how long its answers are, and how its clock runs."""

    GROUP: ClassVar[str] = "Server"
    served_model_name: Annotated[
        str | None,
        arg("Names under which it serves the model, separated by commas.", default_text="MODEL", metavar="NAME,…"),
    ] = None
    output_len: Annotated[
        int | str, arg("Tokens after which an answer ends by itself: a number or a distribution.", metavar="N|DIST")
    ] = 128
    speed: Annotated[
        float,
        arg(
            "Simulated seconds per real second: 10 answers ten times as fast.", ge=1e-3, le=1e4, ends="0.001 and 10,000"
        ),
    ] = 1.0
    enable_prompt_tokens_details: Annotated[
        bool, arg("Report the cached tokens of prompts in usage, as vLLM does.")
    ] = False
    seed: Annotated[int, arg("Random seed.")] = 0
