"""A whole training run: how many steps, days and dollars a budget of tokens takes where GPUs and nodes fail.

    failures = FailureModel(mtbf=10_000, checkpoint=60, restart=600)      # seconds, of the whole machine
    failures.optimal_interval                                             # 1,056 s: Daly's optimum
    failures.goodput(failures.optimal_interval)                           # 0.84: share of the time that counts

Failures come at random, at any time equally likely (an exponential law), whatever the job does. A failure loses the
work since the last checkpoint, and costs a restart, in which another one may come. The mean time of a segment of τ
seconds of work and its checkpoint δ is then M·exp(R/M)·(exp((τ + δ)/M) - 1) for a mean time between failures M and a
restart R (J. T. Daly, Future Generation Computer Systems 22, 2006), and goodput is τ over it.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from ..specs.structs import Hardware, Plan
from ..specs.train_args import TrainArgs
from .passes import Recipe, training_constants

DAY, HOUR = 86400.0, 3600.0
MOST_EXPONENT = 700.0  # of exp: a segment that takes longer than this never ends


class FailureModel(NamedTuple):
    """Seconds: between failures of the whole machine, that a checkpoint takes, and from a failure to going on."""

    mtbf: float
    checkpoint: float
    restart: float

    @property
    def optimal_interval(self) -> float:
        """Seconds of work between checkpoints: Daly's higher-order estimate, which begins with Young's √(2δM)."""
        ratio = self.checkpoint / (2 * self.mtbf)
        if ratio >= 1:
            return self.mtbf
        young = math.sqrt(2 * self.checkpoint * self.mtbf)
        return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - self.checkpoint

    def goodput(self, interval: float) -> float:
        """Share of the time in which steps are computed that count: ``FailureModel(1e4, 60, 600).goodput(1000)``"""
        if math.isinf(self.mtbf):
            return interval / (interval + self.checkpoint) if interval else 1.0
        exponent = (interval + self.checkpoint) / self.mtbf
        if exponent + self.restart / self.mtbf > MOST_EXPONENT:
            return 0.0
        return interval / (self.mtbf * math.exp(self.restart / self.mtbf) * math.expm1(exponent))


class TrainRun(msgspec.Struct, kw_only=True, frozen=True):
    """A budget of tokens on a machine that fails now and then."""

    tokens: float  # of the whole training
    steps: float  # of the optimizer
    goodput: float  # share of the time in which steps are computed that count
    mtbf_hours: float | None  # between failures of the whole machine; None: nothing fails
    failures: float  # expected in the run
    checkpoint_interval_s: float | None  # of training between two checkpoints; None: there are none
    checkpoint_interval_origin: str  # given, or Young/Daly: the optimum
    checkpoint_time_s: float  # that training waits for a checkpoint
    restart_time_s: float  # from a failure until training goes on
    days: float  # failures and checkpoints included
    gpu_hours: float
    cost: float | None  # USD; None where the GPU's price is not known


def training_run(recipe: Recipe, plan: Plan, device: Hardware, tokens_per_second: float) -> TrainRun | None:
    """What the recipe's tokens take; None without a budget of tokens, or where failures leave no time to train."""
    if not recipe.tokens:
        return None
    failures = failure_model(recipe, plan)
    interval, origin = recipe.checkpoint_interval, "given"
    if interval is None and not math.isinf(failures.mtbf):
        interval, origin = failures.optimal_interval, "Young/Daly"
    goodput = 1.0 if interval is None else failures.goodput(interval)
    seconds = recipe.tokens / tokens_per_second / goodput if goodput else math.inf
    gpu_hours = seconds * plan.gpus / HOUR
    price = device.price_per_hour
    return TrainRun(
        tokens=recipe.tokens,
        steps=recipe.tokens / (recipe.global_batch_size * recipe.length),
        goodput=goodput,
        mtbf_hours=None if math.isinf(failures.mtbf) else failures.mtbf / HOUR,
        failures=seconds / failures.mtbf,
        checkpoint_interval_s=interval,
        checkpoint_interval_origin=origin if interval is not None else "",
        checkpoint_time_s=failures.checkpoint,
        restart_time_s=failures.restart,
        days=seconds / DAY,
        gpu_hours=gpu_hours,
        cost=gpu_hours * price if price else None,
    )


def failure_model(recipe: Recipe, plan: Plan) -> FailureModel:
    """The failures of all GPUs and nodes together: their rates add up."""
    constants = training_constants().failures
    rate = plan.gpus / recipe.gpu_mtbf if recipe.gpu_mtbf else 0.0
    rate += math.ceil(plan.gpus / plan.gpus_per_node) / recipe.node_mtbf if recipe.node_mtbf else 0.0
    checkpoint = constants.checkpoint_seconds if recipe.checkpoint_time is None else recipe.checkpoint_time
    restart = constants.restart_seconds if recipe.restart_time is None else recipe.restart_time
    return FailureModel(HOUR / rate if rate else math.inf, checkpoint, restart)


def run_fields(args: TrainArgs) -> dict[str, float | None]:
    """The arguments of a whole run as fields of a recipe."""
    names = ("tokens", "gpu_mtbf", "node_mtbf", "checkpoint_interval", "checkpoint_time", "restart_time")
    return {name: getattr(args, name) for name in names}
