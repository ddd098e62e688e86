"""The arguments of one plan: machine, precision, layout, workload, methods, engine. `arguments.py` says what follows.

Each group stands on the one before it, so that the last has all fields. A field is a flag, a keyword, a control of the
page and an axis of a sweep, and is declared here alone; `inference/request.py` (`_plan`, `_workload`) carries it to
what obeys it.
"""

# Annotations are looked at while the program runs: no postponed evaluation here.
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from .arguments import Slider, arg, arguments, flag
from .machine_args import LayoutArgs
from .structs import Calibration

TOKENS = 10**8  # no request is longer than this


class MethodArgs(LayoutArgs):
    """Methods that change what a step does."""

    GROUP: ClassVar[str] = "Methods"
    speculative_config: Annotated[
        str | Mapping[str, Any] | None,
        arg(
            'Speculative decoding: {"method": "mtp", "num_speculative_tokens": 1, …}',
            metavar="JSON",
            label="Speculative decoding",
            unit="JSON",
        ),
    ] = None
    lora_rank: Annotated[
        Annotated[int, arg("", ge=1, le=8192)] | None,
        arg("Serve LoRA adapters of this rank.", label="LoRA rank", unit="rank", slider=Slider(1, 256, "x2")),
    ] = None
    lora_targets: Annotated[
        str | Sequence[str] | None,
        arg(
            "Linear operators that have LoRA adapters.",
            default_text="attention and MLP",
            metavar="OP,…",
            label="LoRA targets",
            unit="operators",
        ),
    ] = None
    lora_adapters: Annotated[
        int,
        arg(
            "Distinct LoRA adapters in a batch.",
            ge=1,
            le=10**6,
            label="LoRA adapters",
            unit="in a batch",
            slider=Slider(1, 256, "x2"),
        ),
    ] = 1
    enable_chunked_prefill: Annotated[
        bool, arg("Also estimate a step that mixes decode and a prefill chunk.", label="Chunked prefill")
    ] = False
    cpu_offload_gb: Annotated[
        float,
        arg(
            "GB of weights per GPU kept in host memory.",
            ge=0,
            le=1e6,
            ends="0 and a million",
            label="CPU offload",
            unit="GB per GPU",
            slider=Slider(0, 512, 1),
        ),
    ] = 0.0


class PrecisionArgs(MethodArgs):
    """Formats of weights, activations and the cache."""

    GROUP: ClassVar[str] = "Precision"
    quantization: Annotated[
        str | None,
        arg(
            "Weight format: bf16 fp8 fp8-block int8 w4a16 mxfp4 nvfp4 …",
            default_text="from the config",
            short="-q",
            label="Weights",
            offered="precisions",
        ),
    ] = None
    dtype: Annotated[
        str,
        arg(
            "Format of activations and unquantised weights: bf16, fp16, fp32.",
            label="Activations",
            offered=("auto", "bf16", "fp16", "fp32"),
        ),
    ] = "auto"
    kv_cache_dtype: Annotated[
        str,
        arg(
            "KV cache format: bf16, fp8, int8 …",
            label="KV cache",
            offered=("auto", "bf16", "fp16", "fp8", "int8", "int4"),
        ),
    ] = "auto"
    mamba_ssm_cache_dtype: Annotated[
        str | None,
        arg(
            "Format of the states of recurrent layers (Mamba, gated delta nets): bf16, fp16, fp32.",
            default_text="the model's",
            label="Recurrent states",
            offered=("auto", "bf16", "fp16", "fp32"),
        ),
    ] = None
    norm_dtype: Annotated[
        str | None,
        arg("Format of the norms' weights.", default_text="--dtype", label="Norms", offered=("bf16", "fp16", "fp32")),
    ] = None


class KVOffloadArgs(PrecisionArgs):
    """Tiers below the GPU's KV cache, in the words of vLLM and SGLang; what no engine has a flag for is `kv_tiers`."""

    GROUP: ClassVar[str] = "KV tiers"
    kv_offloading_size: Annotated[
        Annotated[float, arg("", ge=0, le=1e6)] | None,
        arg(
            "GiB of CPU memory for KV blocks, over all ranks of a replica (vLLM's; translated for other engines).",
            default_text="none",
            metavar="GIB",
            unit="GiB",
            label="KV in CPU memory",
            slider=Slider(1, 4096, "x2"),
        ),
    ] = None
    kv_offloading_backend: Annotated[
        str | None,
        arg(
            "What keeps offloaded blocks: native or lmcache (vLLM).",
            default_text="native",
            metavar="NAME",
            label="Offloading backend",
        ),
    ] = None
    enable_hierarchical_cache: Annotated[
        bool,
        arg(
            "Keep KV blocks in CPU memory, too: --hicache-ratio times the GPU's, or --hicache-size (SGLang).",
            label="Hierarchical cache",
        ),
    ] = False
    hicache_ratio: Annotated[
        Annotated[float, arg("", gt=0, le=1e4)] | None,
        arg(
            "CPU memory for KV blocks over the GPU's KV cache (SGLang).",
            default_text="2",
            metavar="X",
            unit="×",
            label="Hicache ratio",
            slider=Slider(0.25, 64, "x2"),
        ),
    ] = None
    hicache_size: Annotated[
        Annotated[float, arg("", ge=0, le=1e6)] | None,
        arg(
            "GB of CPU memory for KV blocks, per GPU; overrides --hicache-ratio (SGLang).",
            metavar="GB",
            unit="GB",
            label="Hicache size",
            slider=Slider(1, 4096, "x2"),
        ),
    ] = None
    hicache_write_policy: Annotated[
        str | None,
        arg(
            "When blocks are stored below: write_through, write_through_selective or write_back (SGLang).",
            default_text="write_through",
            metavar="NAME",
            label="Hicache writes",
        ),
    ] = None
    hicache_storage_backend: Annotated[
        str | None,
        arg(
            "Storage below CPU memory: file (disk); mooncake, hf3fs, nixl, aibrix (a shared store) (SGLang).",
            label="Hicache storage",
        ),
    ] = None
    kv_tiers: Annotated[
        str | Iterable[str] | Mapping[str, Any] | None,
        arg(
            "Tiers and their figures: disk:size=2000 shared:size=20000,read=40 cpu:read=50 (GiB, GB/s); keys: size, "
            "read, write, latency (s), concurrency.",
            metavar="TIER:KEY=VALUE,…",
            several=True,
            label="Tiers",
        ),
    ] = None


class EngineArgs(KVOffloadArgs):
    """Limits and habits of the engine."""

    GROUP: ClassVar[str] = "Engine"
    attention: Annotated[
        str | None,
        arg(
            "flash, or eager (attention scores are written to memory).",
            default_text="engine default",
            choices=("flash", "eager"),
            label="Attention",
        ),
    ] = None
    fusion: Annotated[
        bool | None,
        arg("Fuse element-wise operators into their neighbours.", default_text="engine default", label="Fusion"),
    ] = None
    frontend: Annotated[
        str,
        arg(
            "Where latency is measured: in the engine's process, or at an HTTP client.",
            choices=("in-process", "http"),
            label="Timed at",
        ),
    ] = "in-process"
    efficiency: Annotated[
        float | str | Mapping[str, float] | None,
        arg(
            "Fixed share of peak for every kernel: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7.",
            metavar="X",
            label="Efficiency",
            unit="share of peak",
        ),
    ] = None
    host_profile: Annotated[
        str | None,
        arg(
            "Host that launches the kernels: a name from show hosts, or a file from profile --quick or --launches.",
            default_text="server",
            metavar="NAME",
            label="Host",
        ),
    ] = None
    profile: Annotated[
        str | None, arg("Measurements from inferometer profile: kernels (.csv) or a machine (.toml).", metavar="FILE")
    ] = None
    calibration: Annotated[
        str | Calibration | None,
        arg("Correction fitted to your measurements by validate --write-calibration.", metavar="FILE"),
    ] = None
    routing_skew: Annotated[
        float,
        arg(
            "How unevenly experts are chosen: 0 is uniform, 1 always the same experts.",
            ge=0,
            le=1,
            ends="0 (uniform) and 1 (always the same experts)",
            label="Routing skew",
            unit="share",
            slider=Slider(0, 1, 0.05),
        ),
    ] = 0.0
    moe_backend: Annotated[
        str | None,
        arg(
            "Kernels that experts are given to: marlin (vLLM; weights of 4 and 8 bits in 16-bit products).",
            default_text="engine default",
            metavar="NAME",
            label="Expert kernels",
            offered=("auto", "marlin"),
        ),
    ] = None
    max_model_len: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg(
            "Longest sequence: input and output tokens.",
            default_text="model maximum",
            label="Max sequence length",
            unit="tokens",
            slider=Slider(16, 1048576, "x2"),
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg(
            "Tokens per step, at most (the token budget).",
            default_text="engine default",
            label="Token budget",
            unit="tokens/step",
            slider=Slider(16, 131072, "x2"),
        ),
    ] = None
    max_num_seqs: Annotated[
        Annotated[int, arg("", ge=1, le=10**9)] | None,
        arg(
            "Sequences per step, at most.",
            default_text="engine default",
            label="Max sequences",
            unit="per step",
            slider=Slider(1, 4096, "x2"),
        ),
    ] = None
    max_cudagraph_capture_size: Annotated[
        Annotated[int, arg("", ge=0, le=10**9)] | None,
        arg(
            "Largest step, in tokens, that runs as a CUDA graph.",
            default_text="engine default",
            label="CUDA graphs up to",
            unit="tokens",
            slider=Slider(0, 8192, "x2"),
        ),
    ] = None
    max_prefill_cudagraph_capture_size: Annotated[
        Annotated[int, arg("", ge=0, le=10**9)] | None,
        arg(
            "Largest prefill step, in tokens, that runs as a CUDA graph.",
            default_text="engine default",
            label="Prefill graphs up to",
            unit="tokens",
            slider=Slider(0, 16384, "x2"),
        ),
    ] = None
    gpu_memory_utilization: Annotated[
        Annotated[float, arg("", ge=1e-6, le=1)] | None,
        arg(
            "Memory fraction: of the whole GPU (vLLM), of the GPU for weights and KV cache (SGLang's "
            "mem_fraction_static), or of the free memory for KV cache (TensorRT-LLM's free_gpu_memory_fraction).",
            default_text="engine default",
            label="Memory fraction",
            unit="share",
            slider=Slider(0.5, 1, 0.01),
        ),
    ] = None
    block_size: Annotated[
        Annotated[int, arg("", ge=1, le=10**6)] | None,
        arg(
            "Tokens per KV block.",
            default_text="engine default",
            label="KV block",
            unit="tokens",
            slider=Slider(1, 256, "x2"),
        ),
    ] = None
    hf_token: Annotated[str | None, arg("Hugging Face token for gated models; or set HF_TOKEN.", secret=True)] = None


class WorkloadArgs(EngineArgs):
    """One batch of requests."""

    GROUP: ClassVar[str] = "Workload"
    batch_size: Annotated[
        int,
        arg(
            "Concurrent sequences.", ge=1, le=10**7, label="Batch size", unit="sequences", slider=Slider(1, 1024, "x2")
        ),
    ] = 1
    input_len: Annotated[
        Annotated[int, arg("", ge=1, le=TOKENS)] | str | Sequence[int],
        arg(
            "Prompt tokens: one number, or one per layer.",
            kind="int",
            metavar="N[,N…]",
            label="Input",
            unit="tokens",
            slider=Slider(16, 131072, "x2"),
        ),
    ] = 1024
    output_len: Annotated[
        int,
        arg("Output tokens.", ge=1, le=TOKENS, label="Output", unit="tokens", slider=Slider(1, 32768, "x2")),
    ] = 128
    prefix_len: Annotated[
        int,
        arg(
            "Prompt tokens already in the KV cache (a cached prefix).",
            ge=0,
            le=TOKENS,
            label="Cached prefix",
            unit="tokens",
            slider=Slider(0, 131072, "x2"),
        ),
    ] = 0
    prefix_tier: Annotated[
        str | None,
        arg(
            "Where the cached prefix is: gpu, cpu, disk or shared; loading it is part of TTFT.",
            default_text="gpu",
            metavar="TIER",
            label="Prefix lies in",
        ),
    ] = None
    beam_width: Annotated[
        int,
        arg(
            "Beams per sequence; they share the prompt's KV cache.",
            ge=1,
            le=1024,
            label="Beams",
            unit="per sequence",
            slider=Slider(1, 16, 1),
        ),
    ] = 1
    turns: Annotated[
        str | Sequence[tuple[int, int]] | None,
        arg(
            "A conversation: input and output tokens of each turn; the context grows.",
            metavar="IN:OUT,…",
            label="Conversation",
            unit="in:out,…",
        ),
    ] = None
    images: Annotated[
        str | tuple[int, int, int] | None,
        arg("Images per request, for models with vision: 1x896x896.", metavar="NxHxW", label="Images", unit="N×H×W"),
    ] = None
    num_inference_steps: Annotated[
        int,
        arg(
            "Denoising steps per image, for diffusion models.",
            ge=1,
            le=10**5,
            label="Denoising steps",
            unit="per image",
            slider=Slider(1, 250, 1),
        ),
    ] = 50
    usecase: Annotated[
        str | None,
        arg(
            "Preset lengths, batch size and beams: chatbot, summarization, code …",
            label="Use case",
            offered="usecases",
        ),
    ] = None


class PlanArgs(WorkloadArgs):
    """Every argument of a plan: the keywords of `analyze`."""


def short_flag(name: str) -> str:
    """The shortest spelling of a plan's argument: ``short_flag("tensor_parallel_size")  # '-tp'``"""
    known = arguments(PlanArgs).get(name)
    return known.short if known and known.short else flag(name)
