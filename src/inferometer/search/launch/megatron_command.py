"""How Megatron-LM starts a training layout: ``torchrun … pretrain_gpt.py …`` with the model's architecture in flags.

    megatron_lines(request, recipe, "llama-3.1-70b")       # lines of a shell; a comment where Megatron-LM cannot

Flags are those of Megatron-LM's megatron/training/arguments.py and of the configs that it makes flags of
(TransformerConfig, ModelParallelConfig, TrainingConfig) at commit d98e8a6 of August 2026.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any

from ...base.errors import InferometerError
from ...base.input_file import is_piped
from ...base.units import ceil_div
from ...inference.request import Request
from ...network.families.config import Config
from ...network.graph import Block
from ...specs.arguments import arguments
from ...specs.catalog import model as catalog_model
from ...specs.train_args import TrainArgs
from ...training.passes import Recipe
from ...training.training_setup import TrainLayout, stage_layer_counts, train_layout

FAMILIES = (  # of which `pretrain_gpt.py` has all that they are made of
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "qwen3_moe",
    "mixtral",
    "deepseek_v2",
    "deepseek_v3",
    "gpt2",
)
TRIAL_STEPS = 100  # where no budget of tokens is given
_FP8 = {"fp8": "tensorwise", "fp8-block": "blockwise", "mxfp8": "mxfp8"}
_EPSILON = ("rms_norm_eps", "rms_norm_epsilon", "layer_norm_epsilon", "layer_norm_eps")
_OF_CONFIG = {  # flags of what no estimate depends on, and the keys of config.json that say it
    "--norm-epsilon": _EPSILON,
    "--rotary-base": ("rope_theta", "rope_parameters", "rope_scaling"),
}
_SINGLE_QUEUE = ("hopper", "ampere", "ada", "turing", "volta")  # need one to overlap tensor parallelism
Flags = Iterator[str]


def train_line(model: str, gpu: str, given: Mapping[str, Any]) -> str:
    """The same for `inferometer train`, which explains every operator: ``train_line("gpt-2", "h200", {"zero": 1})``"""
    known, argv = arguments(TrainArgs), ["inferometer", "train", model, "--gpu", gpu]
    for name, value in given.items():
        if name not in known or known[name].secret or value is None or value is False:
            continue
        spelled = known[name].short if known[name].short.startswith("-") and len(known[name].short) < 6 else ""
        argv += [spelled or known[name].flag, *([] if value is True else [_text(value)])]
    return shlex.join(argv)


def _text(value: Any) -> str:
    """A number without the point that it does not need, and everything else as it is."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def megatron_lines(request: Request, recipe: Recipe, model: str) -> list[str]:
    """The command that every node runs; a comment says why there is none."""
    try:
        entry = None if is_piped(model) else catalog_model(model)
    except InferometerError:  # a file that has gone since
        entry = None
    reason = _refusal(request, recipe, entry is not None and not entry.network)
    if reason or entry is None:
        return [f"# Megatron-LM: {reason}"]
    config = Config(entry.config).text
    layout = train_layout(request, recipe)
    name = model if "/" in model else entry.hf_id or model
    gpus = layout.tp * layout.replicas * layout.pp
    per_node = min(request.plan.gpus_per_node, request.device.gpus_per_node, gpus)
    argv = [
        *("torchrun", "--nnodes", str(ceil_div(gpus, per_node)), "--nproc-per-node", str(per_node)),
        *("--node-rank", "$NODE_RANK", "--master-addr", "$MASTER_ADDR", "--master-port", "6000"),
        "pretrain_gpt.py",
        *_layout_flags(request, recipe, layout),
        *_batch_flags(recipe),
        *_memory_flags(request, recipe),
        *_precision_flags(recipe),
        *_architecture_flags(request, recipe, config),
        *_mixture_flags(request, recipe, config),
        *("--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", name, "--data-path", "$DATA_PATH"),
    ]
    single = request.device.architecture in _SINGLE_QUEUE and (layout.tp > 1 or layout.cp > 1) and recipe.zero < 2
    queue = "CUDA_DEVICE_MAX_CONNECTIONS=1 " if single else ""
    unknown = [flag for flag, keys in _OF_CONFIG.items() if config.get(*keys) is None]
    missing = [f"# as the model's config.json has them: {', '.join(unknown)}"] if unknown else []
    return [
        "# on every node, with NODE_RANK, MASTER_ADDR and DATA_PATH set; --lr is yours to choose",
        *missing,
        queue + " ".join(f'"{word}"' if word.startswith("$") else shlex.quote(word) for word in argv),
    ]


def _refusal(request: Request, recipe: Recipe, has_config: bool) -> str:
    """Why `pretrain_gpt.py` cannot train this; empty if it can."""
    model = request.model
    if not has_config or model.family not in FAMILIES:
        return f"pretrain_gpt.py has no flags for the family of {model.name} ({model.family})"
    if any(span.kind != "full" for span in model.spans.values()):
        return f"{model.name} has windowed attention, which is left out here"
    if recipe.optimizer == "adafactor":
        return "it has no Adafactor"
    if recipe.lora_rank is not None:
        return "pretrain_gpt.py trains no adapters; Megatron-Bridge does"
    if recipe.cpu_offloading_num_layers or recipe.packed_sequences > 1:
        return "pretrain_gpt.py has no flags for activation offload and packed sequences; Megatron-Bridge has"
    return ""


def _layout_flags(request: Request, recipe: Recipe, layout: TrainLayout) -> Flags:
    yield from ("--tensor-model-parallel-size", str(layout.tp))
    if request.plan.sequence_parallel and layout.tp > 1:
        yield "--sequence-parallel"
    yield from ("--pipeline-model-parallel-size", str(layout.pp))
    yield from _stage_flags(request, recipe)
    if layout.cp > 1:
        yield from ("--context-parallel-size", str(layout.cp), "--cp-comm-type", recipe.cp_comm_type)
    if any(op.kind == "moe" for block in request.model.blocks for op in block.ops):
        yield from ("--expert-model-parallel-size", str(layout.ep), "--expert-tensor-parallel-size", str(layout.etp))


def _stage_flags(request: Request, recipe: Recipe) -> Flags:
    """How layers fall into stages: written out where neither Megatron-LM's own split nor its other flags say it."""
    pp, chunks = request.plan.pipeline_parallel_size, recipe.interleave
    if pp == 1:
        return
    ends = (("first", recipe.first_stage_layers), ("last", recipe.last_stage_layers))
    given = [(f"--decoder-{end}-pipeline-num-layers", str(count)) for end, count in ends if count is not None]
    splits = [("embedding", recipe.account_for_embedding), ("loss", recipe.account_for_loss)]
    counted = [f"--account-for-{part}-in-pipeline-split" for part, is_counted in splits if is_counted]
    even = (request.model.num_layers + len(counted)) % (pp * chunks) == 0
    if not even and not given:
        yield from ("--pipeline-model-parallel-layout", stage_text(stage_layer_counts(request, recipe)))
        return
    yield from (word for pair in given for word in pair)
    yield from counted
    if chunks > 1:
        yield from ("--num-virtual-stages-per-pipeline-rank", str(chunks))


def stage_text(counts: Iterable[int]) -> str:
    """Layers of virtual stages in Megatron-LM's notation: ``stage_text([1, 2, 2, 1])  # 'Et|(tt|)*2tL'``"""
    first, *middle, last = counts
    inner = []
    for count, run in groupby(middle):
        number = len(list(run))
        inner.append(f"({'t' * count}|)*{number}" if number > 1 else f"{'t' * count}|")
    return f"E{'t' * first}|{''.join(inner)}{'t' * last}L"


def _batch_flags(recipe: Recipe) -> Flags:
    steps = TRIAL_STEPS
    if recipe.tokens:
        steps = max(1, round(recipe.tokens / (recipe.global_batch_size * recipe.length)))
    yield from ("--micro-batch-size", str(recipe.micro_batch_size))
    yield from ("--global-batch-size", str(recipe.global_batch_size))
    yield from ("--seq-length", str(recipe.length), "--train-iters", str(steps), "--lr", "3e-4")
    yield from ("--optimizer", "sgd" if recipe.optimizer == "sgd" else "adam")


def _memory_flags(request: Request, recipe: Recipe) -> Flags:
    """What replicas share, and what is computed again."""
    yield "--overlap-grad-reduce"
    if recipe.zero:
        yield from ("--use-distributed-optimizer", "--overlap-param-gather")
    if recipe.zero >= 2:
        strategy = "optim_grads" if recipe.zero == 2 else "optim_grads_params"
        yield from ("--use-megatron-fsdp", "--data-parallel-sharding-strategy", strategy)
        yield from ("--no-gradient-accumulation-fusion", "--ckpt-format", "fsdp_dtensor")
    if recipe.recompute == "selective":
        yield from ("--recompute-granularity", "selective", "--recompute-modules", *recipe.modules)
    if recipe.recompute == "full":
        yield from ("--recompute-granularity", "full", "--recompute-method", recipe.recompute_method or "uniform")
        layers = 1 if recipe.recompute_num_layers is None else recipe.recompute_num_layers
        if recipe.recompute_method != "block" or recipe.recompute_num_layers is not None:
            yield from ("--recompute-num-layers", str(layers))
    if recipe.mtp_num_layers:
        yield from ("--mtp-num-layers", str(recipe.mtp_num_layers))
    if recipe.cuda_graph_impl != "none":
        yield from ("--cuda-graph-impl", recipe.cuda_graph_impl)
    if recipe.use_transformer_engine_op_fuser:
        yield "--use-transformer-engine-op-fuser"
    if recipe.cross_entropy_loss_fusion:
        yield from ("--cross-entropy-loss-fusion", "--cross-entropy-fusion-impl", "te")
    yield from ("--attention-backend", "unfused" if request.plan.attention == "eager" else "flash")


def _precision_flags(recipe: Recipe) -> Flags:
    if recipe.precision in _FP8:
        yield from ("--bf16", "--fp8-format", "hybrid", "--fp8-recipe", _FP8[recipe.precision])
    elif recipe.precision == "nvfp4":
        yield from ("--bf16", "--fp4-format", "e2m1", "--fp4-recipe", "nvfp4")
    elif recipe.precision != "fp32":
        yield f"--{recipe.precision}"
    if recipe.fp8_param_gather:
        yield "--fp4-param-gather" if recipe.precision == "nvfp4" else "--fp8-param-gather"
    if recipe.grad_dtype == "bf16":
        yield "--grad-reduce-in-bf16"
    elif recipe.precision == "fp16" and recipe.grad_dtype == "fp32":
        yield "--accumulate-allreduce-grads-in-fp32"


# ------------------------------------------------------------------ the model


def _layers(request: Request) -> list[Block]:
    return [block for block in request.model.blocks if block.stage == "layer"]


def _has(request: Request, name: str) -> bool:
    return any(op.name == name for block in _layers(request) for op in block.ops)


def _architecture_flags(request: Request, recipe: Recipe, c: Config) -> Flags:
    """Sizes and parts of a layer."""
    model, dims = request.model, _layers(request)[0].dims
    latent, heads = _has(request, "kv_b_proj"), int(dims["num_attention_heads"])
    dense = [int(block.dims["intermediate_size"]) for block in _layers(request) if "intermediate_size" in block.dims]
    wide = dense[0] if dense else c.size("intermediate_size", default=int(dims.get("moe_intermediate_size", 0)))
    yield from ("--num-layers", str(model.num_layers), "--hidden-size", str(int(model.sizes["hidden_size"])))
    yield from ("--ffn-hidden-size", str(wide), "--num-attention-heads", str(heads))
    yield from _latent_flags(dims, c) if latent else _head_flags(dims, heads)
    yield from ("--max-position-embeddings", str(max(model.max_position, recipe.length)))
    yield from _position_flags(request, c, latent)
    yield from ("--normalization", "LayerNorm" if model.family == "gpt2" else "RMSNorm")
    if c.get(*_EPSILON) is not None:
        yield from ("--norm-epsilon", f"{c.number(*_EPSILON, default=1e-5):g}")
    if not _has(request, "fc1"):
        yield "--swiglu"
    if model.family != "gpt2":
        yield "--disable-bias-linear"
    if model.family == "qwen2" or c.flag("attention_bias"):
        yield "--add-qkv-bias"
    if latent or _has(request, "qk_norm"):
        yield "--qk-layernorm"
    if not c.flag("tie_word_embeddings", default=model.family == "gpt2"):
        yield "--untie-embeddings-and-output-weights"
    if not recipe.dropout:
        yield from ("--attention-dropout", "0.0", "--hidden-dropout", "0.0")


def _head_flags(dims: Mapping[str, float], heads: int) -> Flags:
    yield from ("--kv-channels", str(int(dims["head_dim"])))
    if int(dims["num_key_value_heads"]) != heads:
        yield from ("--group-query-attention", "--num-query-groups", str(int(dims["num_key_value_heads"])))


def _latent_flags(dims: Mapping[str, float], c: Config) -> Flags:
    yield "--multi-latent-attention"
    sizes = {
        "--q-lora-rank": "q_lora_rank",
        "--kv-lora-rank": "kv_lora_rank",
        "--qk-head-dim": "qk_nope_head_dim",
        "--qk-pos-emb-head-dim": "qk_rope_head_dim",
        "--v-head-dim": "v_head_dim",
    }
    for flag, key in sizes.items():
        if dims.get(key):
            yield from (flag, str(int(dims[key])))
    scaling = c.section("rope_scaling") or Config({})
    for flag, key in {
        "--rotary-scaling-factor": "factor",
        "--mscale": "mscale",
        "--mscale-all-dim": "mscale_all_dim",
    }.items():
        if scaling.get(key) is not None:
            yield from (flag, _text(scaling.number(key, default=1.0)))


def _position_flags(request: Request, c: Config, latent: bool) -> Flags:
    if not _has(request, "rope"):
        yield from ("--position-embedding-type", "learned_absolute")
        return
    rope = c.section("rope_parameters", "rope_scaling") or Config({})
    yield from ("--position-embedding-type", "rope")
    theta = c.number("rope_theta", default=rope.number("rope_theta", default=0.0))
    if theta:
        yield from ("--rotary-base", str(int(theta)))
    if rope.get("rope_type", "type") == "llama3" and not latent:
        yield from ("--use-rope-scaling", "--rope-scaling-factor", _text(rope.number("factor", default=8.0)))


def _mixture_flags(request: Request, recipe: Recipe, c: Config) -> Flags:
    """Experts and their router."""
    mixtures = [block for block in _layers(request) if block.dims.get("num_experts")]
    if not mixtures:
        return
    dims, number = mixtures[0].dims, request.model.num_layers
    yield from ("--num-experts", str(int(dims["num_experts"])))
    yield from ("--moe-router-topk", str(int(dims["num_experts_per_tok"])))
    yield from ("--moe-ffn-hidden-size", str(int(dims["moe_intermediate_size"])))
    if dims.get("shared_expert_intermediate_size"):
        yield from ("--moe-shared-expert-intermediate-size", str(int(dims["shared_expert_intermediate_size"])))
    sparse = {layer for block in mixtures for layer in block.layers}
    if len(sparse) < number:
        runs = groupby(range(number), key=lambda layer: int(layer in sparse))
        yield from ("--moe-layer-freq", "+".join(f"[{kind}]*{len(list(run))}" for kind, run in runs))
    yield from ("--moe-grouped-gemm", "--moe-token-dispatcher-type")
    flex = recipe.moe_flex_dispatcher_backend
    yield from ("alltoall",) if flex is None else ("flex", "--moe-flex-dispatcher-backend", flex)
    if recipe.overlap_moe_expert_parallel_comm:
        yield "--overlap-moe-expert-parallel-comm"
    if request.model.family == "deepseek_v3":
        yield from ("--moe-router-score-function", "sigmoid", "--moe-router-enable-expert-bias")
    if request.model.family == "deepseek_v2":
        yield "--moe-router-pre-softmax"
    groups, limit = c.size("n_group", default=1), c.size("topk_group", default=1)
    if groups > 1:
        yield from ("--moe-router-num-groups", str(groups), "--moe-router-group-topk", str(limit))
    scale = c.number("routed_scaling_factor", default=1.0)
    if scale != 1:
        yield from ("--moe-router-topk-scaling-factor", _text(scale))
