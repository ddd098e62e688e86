"""The arguments of the machine and of the layout on it: the first groups of a plan. `plan_args.py` has the others."""

# Annotations are looked at while the program runs: no postponed evaluation here.
from typing import Annotated, ClassVar

from .arguments import Args, Slider, arg

RANKS = 65536


class TargetArgs(Args):
    """What is run, on what."""

    GROUP: ClassVar[str] = "Machine"
    model: Annotated[
        str,
        arg("Catalogue name, Hugging Face id, config.json or its folder, or a network's TOML file.", label="Model"),
    ] = "llama-3.1-8b"
    gpu: Annotated[
        str,
        arg(
            "Catalogue name, TOML file, or name:key=value,… to change its specifications.",
            label="GPU",
            offered="hardware",
            metavar="NAME",
        ),
    ] = "h100-sxm"


class MachineArgs(Args):
    """The engine."""

    GROUP: ClassVar[str] = "Machine"
    engine: Annotated[
        str | None,
        arg(
            "vllm, sglang, trtllm, hf, or roofline (kernels at peak speed); vllm@0.15 takes that version's defaults.",
            default_text="vllm",
            label="Engine",
            offered="engines",
        ),
    ] = None
    power_cap: Annotated[
        Annotated[float, arg("", gt=0, le=1e6)] | None,
        arg(
            "Power limit per GPU, in watts; clocks drop to stay within it.",
            default_text="the GPU's own",
            metavar="W",
            label="Power cap",
            unit="W",
            slider=Slider(100, 1400, 50),
        ),
    ] = None
    assume_decoder: Annotated[
        bool,
        arg(
            "Treat a model of unknown structure as a Llama-like decoder.",
            label="Assume a decoder",
        ),
    ] = False


class LayoutArgs(MachineArgs):
    """How the model lies on the GPUs."""

    GROUP: ClassVar[str] = "Layout"
    tensor_parallel_size: Annotated[
        int,
        arg(
            "Tensor-parallel GPUs: each layer is split across them.",
            ge=1,
            le=RANKS,
            short="-tp",
            label="Tensor parallel",
            unit="GPUs",
            slider=Slider(1, 64, "x2"),
        ),
    ] = 1
    pipeline_parallel_size: Annotated[
        int,
        arg(
            "Pipeline stages: the layers are divided among them.",
            ge=1,
            le=RANKS,
            short="-pp",
            label="Pipeline parallel",
            unit="stages",
            slider=Slider(1, 16, "x2"),
        ),
    ] = 1
    data_parallel_size: Annotated[
        int,
        arg(
            "Data-parallel replicas of the model, or of its attention with expert parallelism.",
            ge=1,
            le=RANKS,
            short="-dp",
            label="Data parallel",
            unit="replicas",
            slider=Slider(1, 64, "x2"),
        ),
    ] = 1
    enable_expert_parallel: Annotated[
        bool, arg("Distribute the experts over all TP × DP ranks.", label="Expert parallel")
    ] = False
    sequence_parallel: Annotated[
        bool, arg("Also split norms and residuals across the TP ranks.", short="-sp", label="Sequence parallel")
    ] = False
    decode_context_parallel_size: Annotated[
        int,
        arg(
            "TP ranks that split the KV cache during decode.",
            ge=1,
            le=RANKS,
            short="-dcp",
            label="Decode context parallel",
            unit="GPUs",
            slider=Slider(1, 16, "x2"),
        ),
    ] = 1
    micro_batches: Annotated[
        int,
        arg(
            "Micro-batches in the pipeline; 0: one per stage.",
            ge=0,
            le=10**6,
            label="Micro-batches",
            unit="per batch",
            slider=Slider(0, 32, 1),
        ),
    ] = 0
    nodes: Annotated[
        Annotated[int, arg("", ge=1, le=10**6)] | None,
        arg(
            "Nodes (machines).",
            default_text="as many as the layout needs",
            label="Nodes",
            unit="machines",
            slider=Slider(1, 64, "x2"),
        ),
    ] = None
    gpus_per_node: Annotated[
        Annotated[int, arg("", ge=1, le=RANKS)] | None,
        arg(
            "GPUs per node.",
            default_text="from the GPU's data",
            label="GPUs per node",
            unit="GPUs",
            slider=Slider(1, 72, 1),
        ),
    ] = None
    interconnect: Annotated[
        str | None,
        arg(
            "Link between the GPUs of a node: nvlink, pcie …",
            default_text="the fastest",
            label="Interconnect",
            offered="links",
        ),
    ] = None
    overlap: Annotated[
        float,
        arg(
            "Share of communication hidden behind compute.",
            ge=0,
            le=1,
            ends="0 (none) and 1 (all that compute can hide)",
            label="Overlapped communication",
            unit="share",
            slider=Slider(0, 1, 0.05),
        ),
    ] = 0.0
