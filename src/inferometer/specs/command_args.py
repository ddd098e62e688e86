"""The arguments of commands beyond one plan: traffic, serving, goodput, search, sensitivity, training, measuring."""

# Annotations are looked at while the program runs: no postponed evaluation here.
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from .arguments import Args, arg
from .plan_args import EngineArgs

_LENGTH = "a number, or how it varies: uniform:min=…,max=… lognormal:mean=…,std=… zipf:a=…,min=…,max=…"


class TrafficArgs(Args):
    """Where requests come from: a trace, or synthetic ones."""

    GROUP: ClassVar[str] = "Requests"
    trace: Annotated[
        str | None,
        arg(
            "Requests: a trace, a log or the result of a benchmark; CSV, JSON, Parquet, or .gz of them.", metavar="FILE"
        ),
    ] = None
    columns: Annotated[
        str | Mapping[str, str] | None,
        arg(
            "Which columns of the file are which: input_tokens=n_in,output_tokens=n_out,arrival_ms=sent.",
            metavar="OURS=THEIRS,…",
        ),
    ] = None
    run: Annotated[
        int | None, arg("Which run of the file, if it has the results of several; 1 is the first.", metavar="N")
    ] = None
    num_prompts: Annotated[int | None, arg("Requests; of a trace, its first ones.", default_text="1000, or all")] = None
    request_rate: Annotated[
        float | None,
        arg("Requests a second; inf: at once. A trace is stretched to it.", default_text="inf, or a trace's"),
    ] = None
    burstiness: Annotated[
        float | None,
        arg("1: Poisson; less comes in bursts, more is more even.", default_text="1, or as a trace came"),
    ] = None
    input_len: Annotated[int | str | None, arg(f"Prompt tokens: {_LENGTH}.", default_text="1024", metavar="N|DIST")] = (
        None
    )
    output_len: Annotated[
        int | str | None, arg("Tokens of the answer, likewise.", default_text="128", metavar="N|DIST")
    ] = None
    prefix_len: Annotated[int, arg("First prompt tokens that all requests share.")] = 0
    turns: Annotated[
        int | str | None, arg("Turns of a conversation; --input-len is what each adds.", metavar="N|DIST")
    ] = None
    think_time: Annotated[
        float | str | None, arg("Seconds between an answer and the user's next request.", metavar="S|DIST")
    ] = None
    max_concurrency: Annotated[int | None, arg("Requests under way at most: a new one waits for an end.")] = None
    seed: Annotated[int, arg("Of everything that chance decides.")] = 0


class ServedPlanArgs(EngineArgs):
    """A plan that is served: everything of one but its workload, which comes from the requests."""

    GROUP: ClassVar[str] = "Engine"
    frontend: Annotated[
        str,
        arg("Where the clock stands: in-process, or at an http client.", choices=("in-process", "http")),
    ] = "http"


class ServingArgs(ServedPlanArgs):
    """How an engine serves many requests: its scheduler, cache and replicas; the keywords of `simulate`."""

    GROUP: ClassVar[str] = "Serving"
    scheduler: Annotated[
        str | None,
        arg("vllm, sarathi, prefill_first, trtllm or static.", default_text="engine default"),
    ] = None
    policy: Annotated[str, arg("Which request is first: fcfs, or priority (a column of the trace).")] = "fcfs"
    enable_prefix_caching: Annotated[
        bool | None,
        arg("Keep the cache of prompts for those that begin alike.", default_text="engine default"),
    ] = None
    long_prefill_token_threshold: Annotated[int, arg("Longest piece of a prompt; 0: no limit.", ge=0, le=10**9)] = 0
    prefill_schedule_interval: Annotated[
        int,
        arg("Steps from one with prompts to the next, for data-parallel ranks of a mixture (vLLM).", ge=1, le=10**9),
    ] = 1
    prefill_max_requests: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg("Prompts that one step computes at most (SGLang).", default_text="no limit"),
    ] = None
    scheduler_recv_interval: Annotated[
        int, arg("Steps of an engine that answers from one look at new requests to the next (SGLang).", ge=1, le=10**9)
    ] = 1
    batch_wait_timeout_iters: Annotated[
        int, arg("Steps that prompts are held back for company while others answer (TensorRT-LLM).", ge=0, le=10**9)
    ] = 0
    batch_wait_max_tokens_ratio: Annotated[
        float, arg("Share of the token budget that is company enough.", ge=0, le=1, ends="0 and 1")
    ] = 0.0
    attention_dp_timeout_iters: Annotated[
        int, arg("Steps that a rank's prompts wait until all ranks have one (TensorRT-LLM).", ge=0, le=10**9)
    ] = 0
    attention_dp_batching_wait_iters: Annotated[
        int, arg("Steps that they wait for more of them after that.", ge=0, le=10**9)
    ] = 0
    api_server_count: Annotated[
        int, arg("Front ends, each of which tokenizes one prompt at a time.", ge=1, le=10**5)
    ] = 1
    num_gpu_blocks_override: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg("KV blocks of a replica.", default_text="what fits"),
    ] = None
    router: Annotated[
        str,
        arg("Which replica (-dp) gets a request: round_robin, least_loaded, prefix_aware."),
    ] = "round_robin"
    prefill_replicas: Annotated[int | None, arg("Read prompts on replicas of their own: so many of them.")] = None
    decode_replicas: Annotated[int | None, arg("Write answers on replicas of their own: so many of them.")] = None
    autoscale: Annotated[
        str | Mapping[str, Any] | None,
        arg(
            "The number of replicas follows the load: target=24 (requests of each, running and waiting), "
            "startup=90 (s), min=1, max=8, initial=1, period=15, stabilization=300 (s).",
            metavar="KEY=VALUE,…",
        ),
    ] = None


class GoodputArgs(Args):
    """What a good request keeps."""

    GROUP: ClassVar[str] = "Results"
    goodput: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg("What a good request keeps: ttft:500,tpot:50.", metavar="METRIC:MS", several=True),
    ] = None


class CapacityArgs(Args):
    """The highest rate that holds, and where its simulations run."""

    GROUP: ClassVar[str] = "Results"
    find_capacity: Annotated[bool, arg("Find the highest --request-rate at which --goodput holds.")] = False
    goodput_share: Annotated[float, arg("Of the requests that must keep the limits then.")] = 0.9
    backend: Annotated[str, arg("Where its simulations run: processes, dask or ray.")] = "processes"
    backend_address: Annotated[
        str | None,
        arg("A Dask or Ray cluster to use.", default_text="INFEROMETER_BACKEND_ADDRESS, or one on this machine"),
    ] = None
    jobs: Annotated[
        int | None, arg("Its simulations at a time.", default_text="one per core, or the cluster's slots")
    ] = None


class SweepPartsArgs(Args):
    """A sweep as a folder of part files: where its parts are computed, and which of them."""

    GROUP: ClassVar[str] = "Parts of -o DIR/"
    resume: Annotated[bool, arg("Go on with the parts that are not there yet.")] = False
    shard: Annotated[str | None, arg("Only every N-th part, from the I-th on: for array jobs.", metavar="I/N")] = None
    backend: Annotated[str, arg("Where parts are computed: processes, dask or ray.")] = "processes"
    backend_address: Annotated[
        str | None,
        arg("A Dask or Ray cluster to use.", default_text="INFEROMETER_BACKEND_ADDRESS, or one on this machine"),
    ] = None
    jobs: Annotated[int | None, arg("Parts at a time.", default_text="one, on all cores, or the cluster's slots")] = (
        None
    )


class SearchTrafficArgs(Args):
    """The GPUs of a search, and the requests that they must carry."""

    GROUP: ClassVar[str] = "Target"
    num_gpus: Annotated[int | None, arg("GPUs of each type.", default_text="--nodes, or one node")] = None
    nodes: Annotated[int | None, arg("Machines, instead of --num-gpus.")] = None
    gpus_per_node: Annotated[int | None, arg("GPUs of a machine.", default_text="as the device has")] = None
    input_len: Annotated[
        int | float | str | None, arg("Prompt tokens, or how they vary.", default_text="1024", metavar="N|DIST")
    ] = None
    output_len: Annotated[
        int | float | str | None, arg("Tokens of the answer, likewise.", default_text="128", metavar="N|DIST")
    ] = None
    prefix_len: Annotated[int, arg("First prompt tokens that all requests share.")] = 0
    request_rate: Annotated[
        float | str | None,
        arg(
            "Requests a second to carry; a trace is stretched to it. max: as many as hold.",
            default_text="a trace's, or max",
            metavar="R|max",
        ),
    ] = None
    burstiness: Annotated[
        float | None,
        arg("1: Poisson; less comes in bursts, more is more even.", default_text="1, or as a trace came"),
    ] = None
    goodput: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg("What a good request keeps: ttft:500,tpot:50.", metavar="METRIC:MS", several=True),
    ] = None
    goodput_share: Annotated[float, arg("Of the requests that must keep the limits.")] = 0.9
    objective: Annotated[str, arg("throughput, cost, latency or energy.")] = "throughput"


class SearchLoadArgs(SearchTrafficArgs):
    """Load that varies over the time of a trace."""

    GROUP: ClassVar[str] = "Load over time"
    window: Annotated[
        float | None,
        arg(
            "Seconds of the windows in which the fewest replicas are looked for; 0: none.",
            default_text="by the trace, if its load varies",
            metavar="S",
        ),
    ] = None
    autoscale: Annotated[
        str | Mapping[str, Any] | None,
        arg(
            "The autoscaler beside them: target=24 (requests running and waiting, each replica), startup=90 (s), "
            "min=1, max=8, period=15, stabilization=300 (s), policy=hpa.",
            default_text="by the windows",
            metavar="KEY=VALUE,…",
        ),
    ] = None


class SearchSpaceArgs(SearchLoadArgs):
    """What a search tries: one value or several each."""

    GROUP: ClassVar[str] = "Space"
    mode: Annotated[str, arg("aggregated, disaggregated (pools that read and answer) or both.")] = "both"
    tensor_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("one or several, with commas.", default_text="all that are legal", short="-tp", metavar="N,…"),
    ] = None
    pipeline_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("one or several, with commas.", default_text="all", short="-pp", metavar="N,…"),
    ] = None
    data_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Ranks that meet at the experts.", default_text="all", short="-dp", metavar="N,…"),
    ] = None
    enable_expert_parallel: Annotated[bool | Sequence[bool] | None, arg("", default_text="both", kind="switch")] = None
    quantization: Annotated[
        str | Sequence[str] | None,
        arg("", default_text="the checkpoint's, and fp8 if fast", short="-q", metavar="WORD,…"),
    ] = None
    kv_cache_dtype: Annotated[str | Sequence[str] | None, arg("", default_text="auto,fp8", metavar="WORD,…")] = None
    max_num_batched_tokens: Annotated[
        int | str | Sequence[int] | None,
        arg("", default_text="2048:16384:x2 and the engine's", metavar="N,…"),
    ] = None
    max_num_seqs: Annotated[
        int | str | Sequence[int] | None, arg("", default_text="32:512:x2 and the engine's", metavar="N,…")
    ] = None
    speculative_config: Annotated[
        str | Mapping[str, Any] | None, arg('{"method": "mtp", "num_speculative_tokens": 1, …}', metavar="JSON")
    ] = None
    finalists: Annotated[int, arg("Plans that are simulated at most, once one holds.")] = 6


class SearchArgs(SearchSpaceArgs):
    """What is the same for all plans of a search; with the groups before it, the keywords of `search`."""

    GROUP: ClassVar[str] = "Setting"
    engine: Annotated[str | None, arg("vllm, sglang, trtllm.", default_text="vllm", offered="engines")] = None
    power_cap: Annotated[
        float | None,
        arg("Most watts of each GPU: its clocks fall until it keeps them.", default_text="its own limit", metavar="W"),
    ] = None
    frontend: Annotated[str, arg("Where the clock stands: in-process, or http.", choices=("in-process", "http"))] = (
        "http"
    )
    dtype: Annotated[str, arg("Of activations and plain weights: bf16, fp16.")] = "auto"
    interconnect: Annotated[
        str | None, arg("Which link joins the GPUs: nvlink, pcie …", default_text="the fastest")
    ] = None
    efficiency: Annotated[
        float | str | Mapping[str, float] | None,
        arg("Share of peak: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7.", metavar="X"),
    ] = None
    profile: Annotated[
        str | None, arg("What inferometer profile measured: kernels, or a machine (.toml).", metavar="FILE")
    ] = None
    calibration: Annotated[
        str | None, arg("What validate --write-calibration made of your measurements.", metavar="FILE")
    ] = None
    gpu_memory_utilization: Annotated[float | None, arg("Share of memory.", default_text="engine default")] = None
    routing_skew: Annotated[float, arg("0: experts are chosen evenly; 1: always the same.")] = 0.0
    assume_decoder: Annotated[
        bool, arg("Compute a model whose structure is not understood as a Llama-like decoder all the same.")
    ] = False
    hf_token: Annotated[str | None, arg("For gated configs; HF_TOKEN works too.", secret=True)] = None
    backend: Annotated[str, arg("Where simulations run: processes, dask or ray.")] = "processes"
    jobs: Annotated[int | None, arg("Simulations at a time.", default_text="1, or the cluster's slots")] = None
    seed: Annotated[int, arg("Of everything that chance decides.")] = 0


class SensitivityArgs(Args):
    """The questions of `sensitivity`."""

    GROUP: ClassVar[str] = "Question"
    target: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg(
            "The value of each figure alone that reaches it: tpot:20 (ms), ttft, e2el, throughput, cost, energy.",
            metavar="METRIC:VALUE",
            several=True,
        ),
    ] = None
    size: Annotated[bool, arg("The smallest platform (GPUs × layout) that fits and keeps --target.")] = False
    compare: Annotated[
        str | Iterable[str] | None,
        arg("Other models on this machine: what is lost, what keeps it.", metavar="MODEL,…"),
    ] = None
    compare_usecases: Annotated[bool, arg("What each use case of the catalogue asks of the machine.")] = False


class TrainArgs(Args):
    """One optimizer step."""

    GROUP: ClassVar[str] = "Training"
    engine: Annotated[str, arg("Whose kernels: megatron, or roofline: the speed of light.")] = "megatron"
    global_batch_size: Annotated[
        Annotated[int, arg("", ge=1, le=10**7)] | None,
        arg("Sequences of a step.", default_text="one micro-batch per replica"),
    ] = None
    micro_batch_size: Annotated[int, arg("Sequences that a replica runs at once.", ge=1, le=10**6)] = 1
    seq_len: Annotated[
        int | str | Sequence[int] | None,
        arg("Tokens a sequence, or one number per layer.", default_text="2048", metavar="N[,N…]"),
    ] = None
    data_parallel_size: Annotated[int, arg("Replicas of the model.", short="-dp")] = 1
    tensor_parallel_size: Annotated[int, arg("GPUs that share every layer.", short="-tp")] = 1
    pipeline_parallel_size: Annotated[int, arg("Stages that share the layers.", short="-pp")] = 1
    sequence_parallel: Annotated[bool, arg("Norms and residuals split over tp ranks, too.", short="-sp")] = False
    enable_expert_parallel: Annotated[bool, arg("Spread the experts over all tp × dp ranks.")] = False
    interleave: Annotated[int, arg("Virtual stages of every pipeline stage.", ge=1, le=1024)] = 1
    zero: Annotated[int, arg("Replicas share: 1 optimizer, 2 and gradients, 3 and weights.", ge=0, le=3)] = 0
    recompute: Annotated[str, arg("none, selective (attention's core) or full (every layer).")] = "none"
    optimizer: Annotated[str, arg("adamw, sgd or adafactor.")] = "adamw"
    precision: Annotated[str, arg("Of the products: bf16, fp16, fp8, fp32 …")] = "bf16"
    grad_dtype: Annotated[str, arg("In which gradients are accumulated and summed.")] = "fp32"
    dropout: Annotated[bool, arg("With dropout, as models had it: its masks are kept.")] = False
    attention: Annotated[str | None, arg("flash, or eager: scores go through memory.", default_text="flash")] = None
    tokens: Annotated[
        Annotated[float, arg("", gt=0, le=1e18)] | None, arg("Of the whole training, for days and cost: 1e12.")
    ] = None
    efficiency: Annotated[
        float | str | Mapping[str, float] | None,
        arg("Share of peak: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7.", metavar="X"),
    ] = None
    nodes: Annotated[int | None, arg("Machines.", default_text="as many as the layout needs")] = None
    gpus_per_node: Annotated[int | None, arg("GPUs of a machine.", default_text="as the device has")] = None
    overlap: Annotated[float | None, arg("Share of communication behind computing.", default_text="dp 0.9, tp 0.5")] = (
        None
    )
    interconnect: Annotated[
        str | None, arg("Which link joins the GPUs: nvlink, pcie …", default_text="the fastest")
    ] = None
    routing_skew: Annotated[float, arg("0: experts are chosen evenly; 1: always the same.")] = 0.0
    assume_decoder: Annotated[
        bool, arg("Compute a model whose structure is not understood as a Llama-like decoder all the same.")
    ] = False
    hf_token: Annotated[str | None, arg("For gated configs; HF_TOKEN works too.", secret=True)] = None


class ProfileArgs(Args):
    """Which layers of a model are timed, and how often."""

    GROUP: ClassVar[str] = "Layers of a model"
    num_layers: Annotated[int, arg("Layers that are built and timed.")] = 1
    hardware: Annotated[
        str | None, arg("Name of the machine in the rows.", default_text="the device's", metavar="LABEL")
    ] = None
    mode: Annotated[str, arg("prefill, decode or both.")] = "both"
    warmup: Annotated[int, arg("Passes before the clock starts, for each length.")] = 10
    repeat: Annotated[int, arg("Passes that are timed; the median is written.")] = 100
    prefill_max: Annotated[int, arg("Longest prompt.")] = 2048
    decode_max: Annotated[int, arg("Longest context of a decode step.")] = 2048
    step: Annotated[int | None, arg("Between long lengths; below it they double.", default_text="a sixteenth")] = None
    hf_token: Annotated[str | None, arg("For gated configs; HF_TOKEN works too.", secret=True)] = None
    calibrate: Annotated[bool, arg("Run the whole model too, and scale the rows to its wall time.")] = False
    scaling_num_layers: Annotated[int | None, arg("Layers of the whole model.", default_text="all that fit")] = None
    scaling_input_min: Annotated[int, arg("Shortest prompt of the whole model.")] = 128
    scaling_input_max: Annotated[int, arg("Longest prompt of the whole model.")] = 1024
    scaling_input_step: Annotated[int, arg("Between prompts of the whole model.")] = 128
    scaling_repeat: Annotated[int, arg("Runs of each; the median counts.")] = 3
    force: Annotated[bool, arg("Write scaled rows even if noise made their factors worthless.")] = False


class BenchArgs(Args):
    """A live server, and how it is spoken to."""

    GROUP: ClassVar[str] = "Server"
    served_model_name: Annotated[
        str | None, arg("The name that the server knows the model by.", default_text="--model")
    ] = None
    api: Annotated[str, arg("completions (prompts as token ids), or chat (prompts as text).")] = "completions"
    prompt_text: Annotated[bool, arg("Send words to completions, too: for servers that take no token ids.")] = False
    timeout: Annotated[float, arg("Seconds to wait for one whole answer.")] = 600.0
    extra_body: Annotated[
        str | None, arg('More keys of every request: {"top_p": 0.9}; null takes one away.', metavar="JSON")
    ] = None
    num_warmups: Annotated[int, arg("Requests before the run that are not counted.", ge=0, le=10**6)] = 0
    ramp_up_strategy: Annotated[
        str | None,
        arg("The rate grows over the run: linear or exponential.", choices=("linear", "exponential")),
    ] = None
    ramp_up_start_rps: Annotated[
        Annotated[float, arg("", gt=0, le=1e6)] | None, arg("Requests a second at its start.")
    ] = None
    ramp_up_end_rps: Annotated[Annotated[float, arg("", gt=0, le=1e6)] | None, arg("Requests a second at its end.")] = (
        None
    )
    metric_percentiles: Annotated[str, arg("Percentiles of the latencies.", metavar="P,…")] = "90,99"
    percentile_metrics: Annotated[str, arg("Latencies whose percentiles are reported.", metavar="METRIC,…")] = (
        "ttft,tpot,itl,e2el"
    )
    save_detailed: Annotated[
        bool, arg("Lists of all requests in --json, too: ttfts, itls, errors … as vllm bench serve has them.")
    ] = False
    label: Annotated[str | None, arg("A name for the run, kept in its result.")] = None
