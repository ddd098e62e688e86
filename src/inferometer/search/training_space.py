"""The space of a training search: all layouts that use all GPUs, and why some of them cannot be trained on.

problem = build_problem("llama-3.1-70b", "h100-sxm", {"num_gpus": 64, "global_batch_size": 256})
legal, illegal = layouts(problem)
problem.training(legal[0]).layout        # the same layout with every name bound, as `train` has it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import msgspec

from ..base import ranges
from ..base.errors import BadValue, UnknownName, check_int
from ..base.units import ceil_div, plural
from ..costs import parallelism
from ..inference.request import Request
from ..specs.arguments import arguments, check_names
from ..specs.train_args import TrainArgs, TrainSearchArgs
from ..training.passes import RECOMPUTE, Recipe
from ..training.recompute import recomputed_ops
from ..training.train import build_training
from ..training.training_setup import Training, bind_training, illegal_reason

MAX_LAYOUTS = 10**6
MAX_STAGES = 64  # of a pipeline, unless sizes are given
MOST_VIRTUAL = 8
LEAST_TOKENS = 4096  # of a context-parallel rank, unless sizes are given
MOST_EXPERT_RANKS = 64
MICRO_BATCHES = (1, 2, 4, 8)
CHEAP_MODULES = ("core_attn", "layernorm", "moe_act", "mla_up_proj")  # run again in little time
WIDE_MODULES = ("mlp", "moe")  # most of a layer
NOT_SEARCHED = ("enable_expert_parallel", "pipeline_model_parallel_layout")  # of `train`: the search decides them


class Recomputation(NamedTuple):
    """What runs again before the backward pass."""

    granularity: str  # none, selective, full
    modules: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.granularity} ({', '.join(self.modules)})" if self.modules else self.granularity


class TrainingLayout(NamedTuple):
    """How GPUs share a training step: ``str(layout)  # 'tp8·sp·pp4·dp32, micro-batch 1, recompute none, ZeRO-1'``"""

    tp: int
    sp: bool
    cp: int
    pp: int
    virtual_stages: int
    dp: int
    ep: int
    etp: int | None  # None: as `train` has it by default
    micro_batch_size: int
    recomputation: Recomputation
    zero: int

    def __str__(self) -> str:
        axes = [f"tp{self.tp}", *(["sp"] if self.sp else []), *([f"cp{self.cp}"] if self.cp > 1 else [])]
        axes += [f"pp{self.pp}"] if self.pp > 1 else []
        axes += [f"vp{self.virtual_stages}"] if self.virtual_stages > 1 else []
        axes += [f"dp{self.dp}", *([f"ep{self.ep}"] if self.ep > 1 else [])]
        axes += [f"etp{self.etp}"] if self.etp is not None else []
        zero = f", ZeRO-{self.zero}" if self.zero else ""
        return f"{'·'.join(axes)}, micro-batch {self.micro_batch_size}, recompute {self.recomputation}{zero}"

    def arguments(self) -> dict[str, Any]:
        """The keywords of `train` that say the same; what is as by default is left out."""
        given = {
            "tensor_parallel_size": self.tp,
            "sequence_parallel": self.sp,
            "context_parallel_size": self.cp,
            "pipeline_parallel_size": self.pp,
            "interleave": self.virtual_stages,
            "data_parallel_size": self.dp,
            "expert_model_parallel_size": self.ep,
            "expert_tensor_parallel_size": self.etp,
            "micro_batch_size": self.micro_batch_size,
            "recompute": self.recomputation.granularity,
            "recompute_modules": ",".join(self.recomputation.modules) or None,
            "zero": self.zero,
        }
        known = arguments(TrainArgs)
        return {name: value for name, value in given.items() if value != known[name].default}


class TrainingSpace(NamedTuple):
    """The values of every axis that are tried; None where they follow from the others."""

    tp: tuple[int, ...]
    sp: tuple[bool, ...]
    cp: tuple[int, ...]
    pp: tuple[int, ...] | None
    virtual_stages: tuple[int, ...] | None
    dp: tuple[int, ...] | None
    ep: tuple[int, ...]
    etp: tuple[int | None, ...]
    micro_batch_size: tuple[int, ...]
    recomputation: tuple[Recomputation, ...]
    zero: tuple[int, ...] | None


class TrainingProblem(NamedTuple):
    """What a training search is about: a checked request and recipe of one GPU, the GPUs, and the axes."""

    request: Request
    recipe: Recipe
    num_gpus: int
    space: TrainingSpace
    given: dict[str, Any]  # keywords of `train` that all layouts share

    def request_of(self, layout: TrainingLayout) -> Request:
        """The request on a layout, as `train` builds it."""
        per_node = self.request.plan.gpus_per_node
        plan = msgspec.structs.replace(
            self.request.plan,
            tensor_parallel_size=layout.tp,
            sequence_parallel=layout.sp,
            pipeline_parallel_size=layout.pp,
            data_parallel_size=layout.dp * layout.cp,
            nodes=ceil_div(self.num_gpus, per_node),
        )
        return self.request.replan(plan)

    def recipe_of(self, layout: TrainingLayout) -> Recipe:
        """The recipe on a layout."""
        granularity, modules = layout.recomputation
        full = granularity == "full"
        return msgspec.structs.replace(
            self.recipe,
            micro_batch_size=layout.micro_batch_size,
            zero=layout.zero,
            recompute=granularity,
            recompute_modules=modules,
            recompute_method=self.recipe.recompute_method if full else None,
            recompute_num_layers=self.recipe.recompute_num_layers if full else None,
            interleave=layout.virtual_stages,
            context_parallel_size=layout.cp,
            expert_model_parallel_size=layout.ep,
            expert_tensor_parallel_size=layout.etp,
        )

    def training(self, layout: TrainingLayout) -> Training:
        """A layout with every name bound."""
        return bind_training(self.request_of(layout), self.recipe_of(layout))

    @property
    def is_mixture(self) -> bool:
        """Whether the model has experts."""
        return any(op.kind == "moe" for block in self.request.model.blocks for op in block.ops)


class RejectedLayout(NamedTuple):
    """A layout and why it cannot be used, in a sentence and as a kind that many share."""

    layout: TrainingLayout
    reason: str
    kind: str
    needed_bytes: float = 0.0


# ------------------------------------------------------------------ what was given


def build_problem(model: str, gpu: str, kwargs: Mapping[str, Any]) -> TrainingProblem:
    """The keywords of a training search, checked: axes as lists, everything else as `train` takes it."""
    check_names(TrainSearchArgs, kwargs, *(name for name in arguments(TrainArgs) if name not in NOT_SEARCHED))
    given = {name: value for name, value in kwargs.items() if value is not None}
    axes = {name: given.pop(name) for name in arguments(TrainSearchArgs) if name in given}
    num_gpus, modules = given.pop("num_gpus", None), given.pop("recompute_modules", None)
    method = {name: given[name] for name in ("recompute_method", "recompute_num_layers") if name in given}
    if given.get("global_batch_size") is None:
        raise BadValue("a training search needs `global_batch_size`: layouts are compared on the same optimizer step")
    if not isinstance(given.get("seq_len", 1), int | str):
        raise BadValue("`seq_len` of a training search must be one number")
    nodes = given.pop("nodes", None)
    fixed = {**given, **({"recompute": "full"} if method else {})}
    request, recipe = build_training(model, gpu, fixed)
    if not isinstance(recipe.seq_len, int):
        raise BadValue("`seq_len` of a training search must be one number")
    count = _num_gpus(request, num_gpus, nodes, given.get("gpus_per_node"))
    per_node = given.get("gpus_per_node") or parallelism.gpus_per_nvlink_domain(request.device, count)
    plan = msgspec.structs.replace(request.plan, gpus_per_node=per_node)
    problem = TrainingProblem(request._replace(plan=plan), recipe, count, _NO_SPACE, given)
    return problem._replace(space=_space(problem, axes, modules, bool(method)))


def _num_gpus(request: Request, num_gpus: Any, nodes: Any, gpus_per_node: Any) -> int:
    """How many GPUs there are: as given, or those of the nodes, or of one node."""
    per_node = gpus_per_node or request.device.gpus_per_node
    most = None if nodes is None else check_int("nodes", nodes, most=10**5) * per_node
    if num_gpus is None:
        return most or per_node
    count = check_int("num_gpus", num_gpus, most=10**6)
    if most is not None and count > most:
        raise BadValue(f"`num_gpus` {count:,} exceeds what {plural(nodes, 'node')} of {per_node} GPUs have: {most:,}")
    return count


_NO_SPACE = TrainingSpace((), (), (), None, None, None, (), (), (), (), None)


def _space(problem: TrainingProblem, axes: Mapping[str, Any], modules: Any, has_method: bool) -> TrainingSpace:
    request, mixture, count = problem.request, problem.is_mixture, problem.num_gpus

    def sizes(name: str, most: int = 10**6) -> tuple[int, ...] | None:
        if name not in axes:
            return None
        values = ranges.numbers(f"`{name}`", axes[name], whole=True)
        return tuple(check_int(name, value, most=most) for value in values)

    node = min(count, request.plan.gpus_per_node, max(8, request.device.gpus_per_node))
    switches: tuple[bool, ...] = (False, True)
    if "sequence_parallel" in axes:
        switches = ranges.switches("`sequence_parallel`", axes["sequence_parallel"])
    experts = _experts(request)
    return TrainingSpace(
        tp=sizes("tensor_parallel_size") or _doubles(node),
        sp=(True,) if mixture and "sequence_parallel" not in axes else switches,
        cp=sizes("context_parallel_size") or _doubles(min(count, max(1, problem.recipe.length // LEAST_TOKENS))),
        pp=sizes("pipeline_parallel_size"),
        virtual_stages=sizes("interleave", 1024),
        dp=sizes("data_parallel_size"),
        ep=sizes("expert_model_parallel_size")
        or (tuple(n for n in _doubles(MOST_EXPERT_RANKS) if math.gcd(*experts, n) == n) if mixture else (1,)),
        etp=sizes("expert_tensor_parallel_size") or (None,),
        micro_batch_size=sizes("micro_batch_size") or MICRO_BATCHES,
        recomputation=_recomputations(request, axes.get("recompute"), modules, has_method),
        zero=_zero_stages(axes.get("zero")),
    )


def _doubles(most: int) -> tuple[int, ...]:
    """Powers of two up to a number: ``_doubles(12)  # (1, 2, 4, 8)``"""
    return tuple(1 << n for n in range(most.bit_length()) if 1 << n <= most)


def _experts(request: Request) -> list[int]:
    """The numbers of experts that layers have."""
    return sorted({int(b.dims["num_experts"]) for b in request.model.blocks if b.dims.get("num_experts")})


def _zero_stages(given: Any) -> tuple[int, ...] | None:
    if given is None:
        return None
    return tuple(check_int("zero", n, 0, 3) for n in ranges.numbers("`zero`", given, whole=True))


def _recomputations(request: Request, given: Any, modules: Any, has_method: bool) -> tuple[Recomputation, ...]:
    """None, full, and of selective recomputation the modules that are given, or a cheap and a wide set."""
    modes = RECOMPUTE if given is None else ranges.choices("`recompute`", given)
    for mode in modes:
        if mode not in RECOMPUTE:
            raise UnknownName("`recompute`", mode, RECOMPUTE)
    if has_method and "full" not in modes:
        raise BadValue("`recompute_method` and `recompute_num_layers` are for `recompute` full")
    if modules is not None and "selective" not in modes:
        raise BadValue("`recompute_modules` is for `recompute` selective")
    options: list[Recomputation] = []
    for mode in modes:
        if mode != "selective":
            options.append(Recomputation(mode))
        elif modules is not None:
            options.append(Recomputation(mode, ranges.choices("`recompute_modules`", modules)))
        else:
            options += [Recomputation(mode, chosen) for chosen in _module_sets(request)]
    return tuple(options)


def _module_sets(request: Request) -> Iterator[tuple[str, ...]]:
    """Modules that are worth recomputing in this model: the cheap ones, then most of a layer with them."""
    has = {
        module
        for block in request.model.blocks
        for module in (*CHEAP_MODULES, *WIDE_MODULES)
        if block.stage == "layer" and any(recomputed_ops(block.ops, (module,)))
    }
    eager = request.plan.attention == "eager"  # flash attention stores no scores that could be given up
    cheap = tuple(module for module in CHEAP_MODULES if module in has and (module != "core_attn" or eager))
    wide = tuple(module for module in WIDE_MODULES if module in has)
    if cheap:
        yield cheap
    if wide:
        yield (*(module for module in cheap if module != "moe_act" or "moe" not in wide), *wide)


# ------------------------------------------------------------------ layouts


def layouts(problem: TrainingProblem) -> tuple[list[TrainingLayout], list[RejectedLayout]]:
    """All layouts that use all GPUs: those that can be trained on, and the others with their reasons."""
    legal: list[TrainingLayout] = []
    rejected: list[RejectedLayout] = []
    reasons: dict[tuple[Any, ...], str] = {}
    batch = problem.recipe.global_batch_size
    for count, layout in enumerate(_all_layouts(problem)):
        if count >= MAX_LAYOUTS:
            raise BadValue(f"the training space has more than {MAX_LAYOUTS:,} layouts: give fewer values")
        each = layout.micro_batch_size * layout.dp
        if batch % each:
            text = (
                f"global batch {batch:,} is no multiple of dp {layout.dp} × micro-batch {layout.micro_batch_size}"
                f" = {each:,}"
            )
            rejected.append(RejectedLayout(layout, text, "the global batch does not divide into micro-batches"))
            continue
        rounds = batch // each % layout.pp == 0 or layout.virtual_stages == 1
        key = (*layout[:8], rounds)
        if key not in reasons:
            reasons[key] = _reason(problem, layout, batch // each)
        if reasons[key]:
            rejected.append(RejectedLayout(layout, reasons[key], _kind(reasons[key])))
        else:
            legal.append(layout)
    return legal, rejected


def _reason(problem: TrainingProblem, layout: TrainingLayout, micro_batches: int) -> str:
    if problem.is_mixture and layout.tp > 1 and not layout.sp and problem.request.engine.kernels:
        return "Megatron-LM trains experts with tensor parallelism only under sequence parallelism"
    try:
        return illegal_reason(problem.request_of(layout), problem.recipe_of(layout), micro_batches)
    except BadValue as error:  # layers of the first and last stage that the others cannot make up for
        return error.sentence.replace("`", "")


def _kind(reason: str) -> str:
    """What layouts with other numbers have in common."""
    for mode, kind in (
        ("micro-batches", "interleaved stages need other numbers of micro-batches"),
        ("needs at least", "there are more stages than layers"),
        ("do not divide by ep", "ranks or experts do not divide by ep"),
        ("pieces", "sequences do not divide by cp"),
    ):
        if mode in reason:
            return kind
    return reason


def _all_layouts(problem: TrainingProblem) -> Iterator[TrainingLayout]:
    space = problem.space
    for tp, cp in product(space.tp, space.cp):
        if problem.num_gpus % (tp * cp):
            continue
        for pp in _stages(problem, problem.num_gpus // (tp * cp)):
            dp = problem.num_gpus // (tp * cp * pp)
            if space.dp is not None and dp not in space.dp:
                continue
            for sp, ep, etp, chunks in product(
                space.sp if tp > 1 else space.sp[:1],
                [ep for ep in space.ep if len(space.ep) == 1 or ep <= tp * cp * dp],
                space.etp,
                _chunks(problem, pp),
            ):
                for micro, again in product(space.micro_batch_size, space.recomputation):
                    for zero in (1, 3) if space.zero is None and pp == 1 else space.zero or (1,):
                        split = sp and tp > 1
                        yield TrainingLayout(tp, split, cp, pp, chunks, dp, ep, etp, micro, again, zero)


def _stages(problem: TrainingProblem, ranks: int) -> Iterable[int]:
    """Pipeline sizes for so many ranks."""
    if problem.space.pp is not None:
        return [pp for pp in problem.space.pp if ranks % pp == 0]
    most = min(ranks, MAX_STAGES, max(problem.request.model.num_layers, 1))
    return [pp for pp in range(1, most + 1) if ranks % pp == 0]


def _chunks(problem: TrainingProblem, pp: int) -> Iterable[int]:
    """Virtual stages of a pipeline rank: those given, or all with equally many layers in each."""
    if problem.space.virtual_stages is not None:
        return problem.space.virtual_stages
    if pp == 1:
        return (1,)
    recipe = problem.recipe
    layers = problem.request.model.num_layers + recipe.account_for_embedding + recipe.account_for_loss
    return (1, *(v for v in range(2, MOST_VIRTUAL + 1) if layers % (pp * v) == 0))
