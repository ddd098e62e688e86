"""A model in training: the same graph, run forward, perhaps forward again, and backward.

    passes = stage_passes(model, Recipe(recompute="selective"), sequence_parallel=True)
    passes.forward     # the model's blocks without what only serving needs, and with a loss
    passes.backward    # of every operator there its gradients, last operator first

Nothing here takes time yet: blocks go through the cost function that every other step goes through.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Literal, NamedTuple

import msgspec

from ..base.cache import cache_by_identity
from ..base.symbols import names as s
from ..network.graph import Block, Model
from ..network.operators import Formula, Op, Work, all_gather, all_reduce, all_to_all, reduce_scatter, send
from ..specs import catalog
from ..specs.structs import Spec
from .backward import FUSED_LOSS, GATHER, SCATTER, SERVING, backward
from .recompute import recomputed_block, recomputed_layers

RECOMPUTE = ("none", "selective", "full")
CP_COMM_TYPES = ("p2p", "all_gather", "a2a")
CUDA_GRAPHS = ("none", "local", "transformer_engine", "full_iteration")
PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "fp8-block", "mxfp8", "nvfp4")


class Recipe(Spec, frozen=True, kw_only=True):
    """How a model is trained; the layout is the plan's."""

    global_batch_size: int = 1  # sequences of an optimizer step, over all replicas
    micro_batch_size: int = 1  # sequences that a replica runs at once
    seq_len: int | tuple[int, ...] = 2048  # one number, or one per layer (token pruning)
    zero: Literal[0, 1, 2, 3] = 0
    reduce_every_microbatch: bool = False  # with ZeRO-2 and 3: no rank keeps all gradients between micro-batches
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_modules: tuple[str, ...] = ()  # with selective; (): the core of attention
    recompute_method: Literal["uniform", "block"] | None = None  # with full
    recompute_num_layers: int | None = None
    optimizer: str = "adamw"
    precision: str = "bf16"
    grad_dtype: str = "fp32"
    interleave: int = 1  # virtual stages of a pipeline rank
    pipeline_layout: tuple[int, ...] = ()  # layers of each virtual stage; (): as even as they go
    first_stage_layers: int | None = None
    last_stage_layers: int | None = None
    account_for_embedding: bool = False  # the embedding counts as a layer of the first stage
    account_for_loss: bool = False  # head and loss count as a layer of the last stage
    context_parallel_size: int = 1
    cp_comm_type: Literal["p2p", "all_gather", "a2a"] = "p2p"
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    dropout: bool = False
    cross_entropy_loss_fusion: bool = False
    mtp_num_layers: int = 0
    lora_rank: int | None = None  # train adapters alone
    lora_targets: tuple[str, ...] = ()
    fp8_param_gather: bool = False  # weights are kept in the products' format alone
    cpu_offloading_num_layers: int = 0  # layers of a virtual stage whose activations are kept in the host's memory
    packed_sequences: int = 1  # in one of `seq_len` tokens; attention stays within each
    cuda_graph_impl: str = "none"
    moe_flex_dispatcher_backend: str | None = None  # None: Megatron's plain all-to-all
    overlap_moe_expert_parallel_comm: bool = False
    use_transformer_engine_op_fuser: bool = False
    overlap: float | None = None  # share of communication that computation hides; None: data/training.toml's
    tokens: float | None = None  # of the whole training
    gpu_mtbf: float | None = None  # hours between failures of one GPU; None: none fails
    node_mtbf: float | None = None  # of one node
    checkpoint_interval: float | None = None  # seconds of training between checkpoints; None: Young/Daly's optimum
    checkpoint_time: float | None = None  # seconds; None: data/training.toml's
    restart_time: float | None = None

    @property
    def modules(self) -> tuple[str, ...]:
        """What selective recomputation runs again: ``Recipe(recompute="selective").modules  # ('core_attn',)``"""
        return (self.recompute_modules or ("core_attn",)) if self.recompute == "selective" else ()

    @property
    def length(self) -> int:
        """Tokens of a sequence where it is longest."""
        return self.seq_len if isinstance(self.seq_len, int) else max(self.seq_len)


class Optimizer(Spec, frozen=True, kw_only=True):
    """Bytes per parameter that an optimizer keeps."""

    label: str
    master: float  # of the fp32 weights, where the model's have fewer bits
    states: float
    flops: float
    source: str


class Overlap(Spec, frozen=True, kw_only=True):
    """Shares of a collective's time that the computation beside it hides."""

    dp: float
    tp: float
    ep: float  # of the exchange of tokens, where it runs beside another micro-batch
    source: str


class Zero(Spec, frozen=True, kw_only=True):
    """What ZeRO-3 holds beside its shards."""

    gathered_layers: int
    source: str


class Failures(Spec, frozen=True, kw_only=True):
    """What failures of GPUs and nodes cost, unless it is given."""

    checkpoint_seconds: float
    restart_seconds: float
    source: str


class Placeholders(Spec, frozen=True, kw_only=True):
    """Tensors that fused products leave to autograd."""

    weight_gradients: bool
    source: str


class Offload(Spec, frozen=True, kw_only=True):
    """Activations in the host's memory."""

    layers_alive: int  # that are on the device while they are copied
    source: str


class TrainingKernels(Spec, frozen=True, kw_only=True):
    """What kernels of training reach on one generation of GPUs."""

    most: float  # share of peak that a long product reaches where power allows
    joules_per_flop: dict[str, float]
    attention: float
    attention_backward: float
    memory: float  # share of bandwidth
    casts: float
    loss: float
    expert_start: float  # s
    scan: float  # share of bandwidth, or of FLOP/s, of Mamba's scan
    scan_backward: float
    source: str


class Cast(Spec, frozen=True, kw_only=True):
    """Bytes through memory for each element that is rounded before a product."""

    bytes: float
    source: str


class ExpertBiases(Spec, frozen=True, kw_only=True):
    """Bytes through memory for each element of experts' outputs, where biases are added apart from the product."""

    forward: float
    backward: float
    source: str


class HostTimes(Spec, frozen=True, kw_only=True):
    """Seconds that the host needs to launch what no CUDA graph does, forward or backward."""

    operator: float
    mixture: float  # of a layer with experts: the rows of each are counted, and the host waits for them
    expert: float  # of each expert of a rank
    source: str


class TrainingConstants(Spec, frozen=True, kw_only=True):
    """data/training.toml"""

    optimizers: dict[str, Optimizer]
    overlap: Overlap
    zero: Zero
    failures: Failures
    placeholders: Placeholders
    kernels: dict[str, TrainingKernels]
    casts: dict[str, Cast]
    expert_biases: ExpertBiases
    host: HostTimes
    offload: Offload


@functools.cache
def training_constants() -> TrainingConstants:
    """data/training.toml, read once."""
    return catalog.constants("training", TrainingConstants)


def overlap_of(recipe: Recipe) -> Overlap:
    """The shares that are hidden: the recipe's own for both axes, or those of data/training.toml."""
    if recipe.overlap is None:
        return training_constants().overlap
    return Overlap(dp=recipe.overlap, tp=recipe.overlap, ep=recipe.overlap, source="given")


class StagePasses(NamedTuple):
    """What one micro-batch runs on a pipeline stage."""

    forward: tuple[Block, ...]
    recompute: tuple[Block, ...]
    backward: tuple[Block, ...]


def stage_passes(
    model: Model,
    recipe: Recipe,
    *,
    sequence_parallel: bool = False,
    eager: bool = False,
    context_parallel: bool = False,
) -> StagePasses:
    """The passes of a model, or of a pipeline stage's part of it."""
    exchange = recipe.cp_comm_type if context_parallel else ""
    forward = tuple(
        training_block(
            block,
            sequence_parallel=sequence_parallel,
            dropout=recipe.dropout,
            eager=eager,
            exchange=exchange,
            fused_loss=recipe.cross_entropy_loss_fusion,
            dispatch=recipe.moe_flex_dispatcher_backend or "alltoall",
        )
        for block in model.blocks
        if block.stage in ("embed", "layer", "head") and block.name != "pipeline"
    )
    return StagePasses(
        forward, _recomputed(forward, recipe), tuple(_backward_block(block) for block in reversed(forward))
    )


# ------------------------------------------------------------------ the forward pass of training


def training_block(
    block: Block,
    *,
    sequence_parallel: bool = False,
    dropout: bool = False,
    eager: bool = False,
    exchange: str = "",
    fused_loss: bool = False,
    dispatch: str = "alltoall",
) -> Block:
    """A block as training runs it: no cache and no sampling; a loss; what tensor parallelism needs in both passes.

    A region of tensor parallelism begins with a copy of its input to all ranks and ends with a sum over them; under
    sequence parallelism with a gather and a scatter. Each is the other's gradient.
    """
    ops = _training_ops(block.ops, block.stage, sequence_parallel, dropout, eager, exchange, fused_loss, dispatch)
    return msgspec.structs.replace(block, ops=ops)


@cache_by_identity(2000)
def _training_ops(
    forward: tuple[Op, ...],
    stage: str,
    sequence_parallel: bool,
    dropout: bool,
    eager: bool,
    exchange: str,
    fused_loss: bool,
    dispatch: str,
) -> tuple[Op, ...]:
    """The operators of a block as training runs them, worked out once for all stages that share them."""
    ops: list[Op] = []
    for op in forward:
        if _is_serving_only(op):
            continue
        if op.kind == "all_gather" and stage == "head":  # the loss works on the ranks' own parts of the logits
            continue
        if op.name == "lm_head":
            ops.append(_region_start(op.dims["k"], op.dims["m"], sequence_parallel))
        if op.kind == "all_reduce":
            rows, width = op.shape["input"]
            if stage == "layer":
                ops.append(_region_start(width, rows, sequence_parallel and op.name == "all_reduce"))
            if sequence_parallel and op.name == "all_reduce":
                op = reduce_scatter(SCATTER, width, m=rows)
        if op.kind == "all_to_all" and op.axis == "ep":
            op, permuted = _token_exchange(op, dispatch)
            ops += permuted
        if exchange and op.kind == "prefill_attention":
            ops.append(_context_exchange(op, exchange))
        ops.append(op)
        if exchange == "a2a" and op.kind == "prefill_attention":
            ops.append(_output_exchange(op))
        if dropout and eager and op.kind == "prefill_attention":
            ops.append(_attention_dropout(op))
        if dropout and op.kind in ("all_reduce", "reduce_scatter") and op.name in ("all_reduce", SCATTER):
            ops.append(_dropout())
        if op.name == "lm_head":
            ops.append(_loss(op, fused_loss))
    return tuple(ops)


def _is_serving_only(op: Op) -> bool:
    """Whether an operator only has work in inference: caches, decoding, sampling."""
    return op.kind in SERVING or op.axis == "dcp" or op.dims.get("m") is s.decode_tokens or op.dims.get("m") == 0


def _region_start(width: Formula, rows: Formula, sequence_parallel: bool) -> Op:
    if sequence_parallel:
        return all_gather(GATHER, width, m=rows)
    return Op("copy", "copy", Work(), {"bytes": rows * width * s.act_bytes, "ranks": s.tp}, axis="tp")


def _token_exchange(op: Op, dispatch: str) -> tuple[Op, list[Op]]:
    """How tokens go to the ranks of their experts and back, in 16 bits, and the pass that sorts them there.

    The plain all-to-all sends a copy for every expert, and sorts them before and behind; DeepEP and HybridEP send one
    to every rank that holds some of its experts, over the network to every node, and sort once.
    """
    width, groups = op.shape["input"][1], s.exchange_groups
    rows = s.tokens / s.tp * groups * (1 - (1 - 1 / groups) ** s.num_experts_per_tok)
    sorted_rows = s.tokens / s.tp * s.num_experts_per_tok
    size = sorted_rows * width * s.act_bytes
    sort = Op(
        f"{op.name}_permute",
        "elementwise",
        Work(reads=size, writes=size),
        {"m": sorted_rows, "n": width},
        shape={"input": (sorted_rows, width)},
    )
    plain = dispatch == "alltoall"
    sent = all_to_all(op.name, width, rows=sorted_rows if plain else rows, ranks=s.a2a, inputs=op.inputs)
    return sent, [sort, sort] if plain else [sort]


def _context_exchange(op: Op, exchange: str) -> Op:
    """What context-parallel ranks send for attention: keys and values round a ring or to all; with a2a q, k and v.

    The names of rows and widths are those of a rank's own tokens.
    """
    d = op.dims
    kv = d["kv_heads"] * (d["qk_dim"] + d["v_dim"])
    if exchange == "a2a":
        width = d["heads"] * d["qk_dim"] + kv
        return all_to_all("context_all_to_all", width, rows=d["tokens"], ranks=s.cp, axis="cp")
    if exchange == "all_gather":
        return all_gather("context_gather", kv, m=s.cp * d["tokens"], ranks=s.cp, axis="cp")
    return send("context_ring", (s.cp - 1) * kv, m=d["tokens"], axis="cp")


def _output_exchange(op: Op) -> Op:
    """The output of attention goes back from heads to tokens."""
    d = op.dims
    width = d["heads"] * d["v_dim"]
    op = all_to_all("context_all_to_all_back", width, rows=d["tokens"], ranks=s.cp, axis="cp")
    return msgspec.structs.replace(op, output=d["tokens"] * width * s.act_bytes)  # kept beside attention's own output


def _dropout() -> Op:
    """In the kernel of the residual's sum, so that only the mask is more: a byte an element."""
    rows = s.tokens / s.sp
    return Op(
        "dropout",
        "elementwise",
        Work(flops=rows * s.hidden_size, writes=rows * s.hidden_size),
        {"m": rows, "n": s.hidden_size},
        shape={"input": (rows, s.hidden_size)},
    )


def _attention_dropout(op: Op) -> Op:
    """A pass of its own over the scores of eager attention."""
    size = op.dims["pairs"] * op.dims["heads"]
    return Op(
        "attention_dropout",
        "elementwise",
        Work(flops=size, reads=size * s.act_bytes, writes=size * (s.act_bytes + 1)),
        {"m": op.dims["pairs"], "n": op.dims["heads"]},
        shape={"input": (op.dims["pairs"], op.dims["heads"])},
    )


def _loss(head: Op, fused: bool) -> Op:
    """Cross entropy over this rank's share of the vocabulary: in fp32, or fused in one kernel over the logits."""
    m, n = head.dims["m"], head.dims["n"]
    return Op(
        FUSED_LOSS if fused else "loss",
        "loss",
        Work(flops=5 * m * n, reads=m * n * s.act_bytes, writes=m * n * (s.act_bytes if fused else 4)),
        {"m": m, "n": n},
        output=0 if fused else 4 * m * n,
        shape={"input": (m, n)},
        calls=1 if fused else 2,
    )


# ------------------------------------------------------------------ recomputation and the backward pass


def _recomputed(blocks: tuple[Block, ...], recipe: Recipe) -> tuple[Block, ...]:
    """What runs again before the backward pass: whole layers, or some modules of every layer."""
    layers = [block for block in blocks if block.stage == "layer"]
    if recipe.recompute == "selective":
        return tuple(filter(None, (recomputed_block(block, recipe.modules) for block in layers)))
    chosen = recomputed_layers(blocks, recipe.recompute_method, recipe.recompute_num_layers)
    if recipe.recompute == "none" or not chosen:
        return ()
    parts = (msgspec.structs.replace(b, layers=tuple(i for i in b.layers if i in chosen)) for b in layers)
    return tuple(block for block in parts if block.layers)


def _backward_block(block: Block) -> Block:
    return msgspec.structs.replace(block, ops=_backward_ops(block.ops))


@cache_by_identity(2000)
def _backward_ops(ops: tuple[Op, ...]) -> tuple[Op, ...]:
    return tuple(grad for op in reversed(ops) for grad in backward(op))


@functools.cache
def _send_ops() -> tuple[Op, ...]:
    return (send("send_to_next_stage", s.hidden_size / s.tp),)


def stage_send(model: Model, layer: int) -> Block:
    """The hidden state to the next part of the pipeline, each tensor-parallel rank sending its share."""
    return Block("pipeline", _send_ops(), {"hidden_size": model.sizes["hidden_size"]}, (layer,), residual=False)


# ------------------------------------------------------------------ after the micro-batches


@functools.cache
def optimizer_step(optimizer: Optimizer, *, master: bool) -> Op:
    """The optimizer's pass over its share of the parameters: gradients (twice, for clipping), copies and weights."""
    states = optimizer.states + (optimizer.master if master else 0)
    read = 2 * s.grad_bytes + states + (0 if master else s.param_bytes)
    size = s.update_params
    return Op(
        "optimizer_step",
        "optimizer",
        Work(flops=optimizer.flops * size, reads=size * read, writes=size * (states + s.param_bytes + s.grad_bytes)),
        {"m": size},
        shape={"parameters": (size,)},
    )


def _replica_collective(build: Callable[..., Op], name: str, size: Formula, experts: bool) -> Op:
    """A collective of ``size`` bytes, whatever format they are in, over the replicas, or over those of the experts."""
    ranks, axis = (s.expert_replicas, "edp") if experts else (s.replicas, "dp")
    name = f"{name}_of_experts" if experts else name
    return build(name, size / s.act_bytes, m=1, ranks=ranks, axis=axis)


@functools.cache
def gradient_sum(zero: int, *, experts: bool = False) -> Op:
    """Sum the gradients over replicas: all of them on each rank, or with ZeRO each rank its share."""
    size = s.reduced_params * s.grad_bytes
    if zero:
        return _replica_collective(reduce_scatter, "reduce_gradients", size, experts)
    return _replica_collective(all_reduce, "all_reduce_gradients", size, experts)


@functools.cache
def weight_gather(*, experts: bool = False) -> Op:
    """Collect the weights that the replicas hold (ZeRO-3) or have updated (ZeRO-1 and 2) in shards."""
    return _replica_collective(all_gather, "gather_weights", s.reduced_params * s.param_bytes, experts)
