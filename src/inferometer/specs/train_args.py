"""The arguments of training: one optimizer step, its layout, precision and memory, by the names that Megatron-LM has.

arguments(TrainArgs)["micro_batch_size"].help         # 'Sequences per replica and micro-batch.'
"""

# Annotations are looked at while the program runs: no postponed evaluation here.
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

from .arguments import Args, arg


class TrainStepArgs(Args):
    """One optimizer step."""

    GROUP: ClassVar[str] = "Training"
    engine: Annotated[str, arg("Whose kernels: megatron, or roofline (kernels at peak speed).")] = "megatron"
    global_batch_size: Annotated[
        Annotated[int, arg("", ge=1, le=10**7)] | None,
        arg("Sequences per optimizer step.", default_text="one micro-batch per replica"),
    ] = None
    micro_batch_size: Annotated[int, arg("Sequences per replica and micro-batch.", ge=1, le=10**6)] = 1
    seq_len: Annotated[
        int | str | Sequence[int] | None,
        arg(
            "Tokens per sequence: one number, or one per layer.",
            default_text="2048",
            metavar="N[,N…]",
            label="Sequence length",
        ),
    ] = None
    data_parallel_size: Annotated[int, arg("Data-parallel replicas of the model.", short="-dp")] = 1
    tensor_parallel_size: Annotated[int, arg("Tensor-parallel GPUs: each layer is split across them.", short="-tp")] = 1
    pipeline_parallel_size: Annotated[int, arg("Pipeline stages: the layers are divided among them.", short="-pp")] = 1
    sequence_parallel: Annotated[bool, arg("Also split norms and residuals across the TP ranks.", short="-sp")] = False
    context_parallel_size: Annotated[
        int, arg("Context-parallel ranks: they divide every sequence.", short="-cp", ge=1, le=10**5)
    ] = 1
    cp_comm_type: Annotated[
        str,
        arg(
            "Context-parallel exchange: p2p (a ring, overlapped with attention), all_gather or a2a.",
            label="CP exchange",
        ),
    ] = "p2p"
    enable_expert_parallel: Annotated[bool, arg("Distribute the experts over all TP × CP × DP ranks.")] = False
    expert_model_parallel_size: Annotated[
        int, arg("Expert-parallel ranks: they divide the experts of a layer.", short="-ep", ge=1, le=10**5)
    ] = 1
    expert_tensor_parallel_size: Annotated[
        Annotated[int, arg("", ge=1, le=10**5)] | None,
        arg("Tensor-parallel ranks within an expert.", short="-etp", default_text="1 with -ep, else TP"),
    ] = None
    decoder_first_pipeline_num_layers: Annotated[
        Annotated[int, arg("", ge=0, le=10**5)] | None,
        arg("Layers of the first pipeline stage.", default_text="as the others"),
    ] = None
    decoder_last_pipeline_num_layers: Annotated[
        Annotated[int, arg("", ge=0, le=10**5)] | None,
        arg("Layers of the last pipeline stage.", default_text="as the others"),
    ] = None
    account_for_embedding_in_pipeline_split: Annotated[
        bool, arg("Count the embedding as a layer of the first stage.")
    ] = False
    account_for_loss_in_pipeline_split: Annotated[bool, arg("Count the loss as a layer of the last stage.")] = False
    pipeline_model_parallel_layout: Annotated[
        str | None, arg("Layers of every virtual stage, in Megatron-LM's notation: Ett|tt|ttL.", metavar="TEXT")
    ] = None
    reduce_every_microbatch: Annotated[
        bool, arg("ZeRO-2 and 3: reduce gradients after every micro-batch, so that no rank keeps them all.")
    ] = False
    interleave: Annotated[int, arg("Virtual stages per pipeline stage.", ge=1, le=1024, label="Virtual stages")] = 1
    zero: Annotated[
        int,
        arg(
            "ZeRO stage: replicas shard 1 the optimizer, 2 also gradients, 3 also weights.",
            ge=0,
            le=3,
            label="ZeRO stage",
        ),
    ] = 0
    recompute: Annotated[
        str,
        arg(
            "Activation recomputation: none, selective (some modules of every layer) or full (whole layers).",
            short="--recompute-granularity",
        ),
    ] = "none"
    recompute_modules: Annotated[
        str | Sequence[str] | None,
        arg(
            "Modules that selective recomputation runs again: core_attn, moe_act, layernorm, mla_up_proj, mlp, moe, "
            "shared_experts.",
            default_text="core_attn",
            metavar="MODULE,…",
        ),
    ] = None
    recompute_method: Annotated[
        str | None,
        arg(
            "Full recomputation: uniform keeps the input of every so many layers, block recomputes so many layers of a "
            "virtual stage.",
            choices=("uniform", "block"),
            default_text="every layer",
        ),
    ] = None
    recompute_num_layers: Annotated[
        Annotated[int, arg("", ge=0, le=10**5)] | None,
        arg("Layers of uniform's unit, or that block recomputes.", default_text="1, or all"),
    ] = None
    optimizer: Annotated[str, arg("Optimizer: adamw, sgd or adafactor.")] = "adamw"
    precision: Annotated[str, arg("Format of the matrix products: bf16, fp16, fp8, fp32 …")] = "bf16"
    grad_dtype: Annotated[str, arg("Format in which gradients are accumulated and reduced.")] = "fp32"
    dropout: Annotated[bool, arg("Train with dropout; its masks are kept in memory.")] = False
    cross_entropy_loss_fusion: Annotated[
        bool, arg("Cross entropy in one fused kernel, without fp32 logits (Transformer Engine's).")
    ] = False
    mtp_num_layers: Annotated[
        int, arg("Further tokens that are predicted, with the model's multi-token-prediction modules.", ge=0, le=64)
    ] = 0
    lora_rank: Annotated[
        Annotated[int, arg("", ge=1, le=8192)] | None,
        arg("Fine-tune LoRA adapters of this rank; all other weights are frozen.", default_text="train all weights"),
    ] = None
    lora_targets: Annotated[
        str | Sequence[str] | None,
        arg("Linear operators that get LoRA adapters.", default_text="attention and MLP", metavar="OP,…"),
    ] = None
    fp8_param_gather: Annotated[
        bool, arg("Keep and gather weights in 8 (or 4) bits alone; the optimizer has the fp32 copies.")
    ] = False
    cpu_offloading_num_layers: Annotated[
        int, arg("Layers of every virtual stage whose activations are kept in the host's memory.", ge=0, le=10**5)
    ] = 0
    packed_sequences: Annotated[
        int, arg("Sequences packed into one of seq-len tokens: attention stays within each.", ge=1, le=10**6)
    ] = 1
    cuda_graph_impl: Annotated[
        str,
        arg(
            "What CUDA graphs launch: none, transformer_engine or local (all but the experts of mixtures), "
            "full_iteration (all)."
        ),
    ] = "none"
    moe_flex_dispatcher_backend: Annotated[
        str | None,
        arg("How tokens go to experts: deepep or hybridep.", default_text="a plain all-to-all"),
    ] = None
    overlap_moe_expert_parallel_comm: Annotated[
        bool, arg("Hide the exchange of tokens behind the computation of another micro-batch.")
    ] = False
    use_transformer_engine_op_fuser: Annotated[
        bool, arg("Experts in fused grouped kernels: activation and rounding inside the products.")
    ] = False
    attention: Annotated[
        str | None, arg("flash, or eager (attention scores are written to memory).", default_text="flash")
    ] = None
    efficiency: Annotated[
        float | str | Mapping[str, float] | None,
        arg("Fixed share of peak for every kernel: 0.6, or flops=0.7,hbm=0.85,intra=0.8,inter=0.7.", metavar="X"),
    ] = None
    nodes: Annotated[int | None, arg("Nodes (machines).", default_text="as many as the layout needs")] = None
    gpus_per_node: Annotated[int | None, arg("GPUs per node.", default_text="from the GPU's data")] = None
    overlap: Annotated[
        float | None, arg("Share of communication hidden behind compute.", default_text="dp 0.9, tp 0.5")
    ] = None
    interconnect: Annotated[
        str | None, arg("Link between the GPUs of a node: nvlink, pcie …", default_text="the fastest")
    ] = None
    routing_skew: Annotated[float, arg("How unevenly experts are chosen: 0 is uniform, 1 always the same experts.")] = (
        0.0
    )
    assume_decoder: Annotated[bool, arg("Treat a model of unknown structure as a Llama-like decoder.")] = False
    hf_token: Annotated[str | None, arg("Hugging Face token for gated models; or set HF_TOKEN.", secret=True)] = None


class TrainArgs(TrainStepArgs):
    """The whole run: how many tokens, and what failures cost; with the group before it, the keywords of `train`."""

    GROUP: ClassVar[str] = "Whole run"
    num_gpus: Annotated[
        Annotated[int, arg("", ge=1, le=10**6)] | None,
        arg(
            "GPUs in all; the data-parallel size follows from it.",
            default_text="as many as the layout needs",
            label="GPUs",
        ),
    ] = None
    tokens: Annotated[
        Annotated[float, arg("", gt=0, le=1e18)] | None,
        arg("Tokens of the whole training run, for days and cost: 1e12.", label="Tokens in all"),
    ] = None
    gpu_mtbf: Annotated[
        Annotated[float, arg("", gt=0, le=1e12)] | None,
        arg(
            "Mean time between failures of one GPU, in hours.",
            default_text="none fails",
            metavar="H",
            label="MTBF of a GPU",
            unit="h",
        ),
    ] = None
    node_mtbf: Annotated[
        Annotated[float, arg("", gt=0, le=1e12)] | None,
        arg(
            "Mean time between failures of one node, in hours.",
            default_text="none fails",
            metavar="H",
            label="MTBF of a node",
            unit="h",
        ),
    ] = None
    checkpoint_interval: Annotated[
        Annotated[float, arg("", ge=1, le=1e9)] | None,
        arg("Seconds of training between checkpoints.", default_text="Young/Daly's optimum", metavar="S"),
    ] = None
    checkpoint_time: Annotated[
        Annotated[float, arg("", ge=0, le=1e7)] | None,
        arg("Seconds that training waits for a checkpoint.", default_text="60", metavar="S"),
    ] = None
    restart_time: Annotated[
        Annotated[float, arg("", ge=0, le=1e7)] | None,
        arg("Seconds from a failure until training goes on.", default_text="600", metavar="S"),
    ] = None


class TrainSearchArgs(Args):
    """What `search --train` tries: one value or several each; all other arguments are those of `train`."""

    GROUP: ClassVar[str] = "Training space"
    tensor_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Tensor-parallel sizes to try.", default_text="powers of 2 in a node", short="-tp", metavar="N,…"),
    ] = None
    sequence_parallel: Annotated[
        bool | Sequence[bool] | None,
        arg(
            "Try with or without sequence parallelism.",
            default_text="both; with it for mixtures",
            short="-sp",
            kind="switch",
        ),
    ] = None
    pipeline_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Pipeline-parallel sizes to try.", default_text="all up to 64", short="-pp", metavar="N,…"),
    ] = None
    interleave: Annotated[
        int | str | Sequence[int] | None,
        arg("Virtual stages per pipeline stage to try.", default_text="1:8:1, where layers divide", metavar="N,…"),
    ] = None
    context_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg(
            "Context-parallel sizes to try.",
            default_text="1, and powers of 2 that leave 4,096 tokens or more",
            short="-cp",
            metavar="N,…",
        ),
    ] = None
    data_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Data-parallel sizes to try.", default_text="whatever uses all GPUs", short="-dp", metavar="N,…"),
    ] = None
    expert_model_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg(
            "Expert-parallel sizes to try.",
            default_text="powers of 2 up to 64 that divide the experts",
            short="-ep",
            metavar="N,…",
        ),
    ] = None
    expert_tensor_parallel_size: Annotated[
        int | str | Sequence[int] | None,
        arg(
            "Tensor-parallel sizes of an expert to try.",
            default_text="1 with -ep, else TP",
            short="-etp",
            metavar="N,…",
        ),
    ] = None
    micro_batch_size: Annotated[
        int | str | Sequence[int] | None,
        arg("Micro-batch sizes to try.", default_text="1,2,4,8", metavar="N,…"),
    ] = None
    recompute: Annotated[
        str | Sequence[str] | None,
        arg(
            "Activation recomputation to try: none, selective, full.",
            default_text="none, two sets of modules, and full",
            short="--recompute-granularity",
            metavar="WORD,…",
        ),
    ] = None
    zero: Annotated[
        int | str | Sequence[int] | None,
        arg("ZeRO stages to try.", default_text="1, and 3 without pipeline stages", metavar="N,…"),
    ] = None


class TrainSensitivityArgs(Args):
    """The question of `sensitivity --train`, beside the arguments of `train`."""

    GROUP: ClassVar[str] = "Question"
    target: Annotated[
        str | Iterable[str] | Mapping[str, float] | None,
        arg(
            "The value of each hardware figure that alone reaches the target: step:5 (seconds), tokens-per-second:1e6, "
            "tokens-per-gpu:500, mfu:0.5, days:30.",
            metavar="METRIC:VALUE",
            several=True,
        ),
    ] = None
