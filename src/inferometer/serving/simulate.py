"""A trace, served: ``simulate("llama-3.1-8b", gpu="h200", trace=trace)`` gives an `Outcome`, request by request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..base.errors import BadValue, UnknownName, abbreviate, check_fraction, check_int
from ..inference.request import build_request
from ..specs.arguments import arguments
from ..specs.plan_args import PlanArgs
from .deployment import build_pool
from .deployment_run import ServingOptions, serve
from .outcome import Outcome
from .router import ROUTERS
from .schedulers import SCHEDULERS
from .trace import Trace

POLICIES = ("fcfs", "priority")
STOPS = ("length", "token")
ROLES = ("both", "prefill", "decode")
_WORDS = frozenset(arguments(PlanArgs)) | {"gpu"}


def simulate(
    model: str,
    gpu: str = "h100-sxm",
    *,
    trace: Trace,
    scheduler: str | None = None,
    policy: str = "fcfs",
    max_concurrency: int | None = None,
    router: str = "round_robin",
    prefill_replicas: int | None = None,
    decode_replicas: int | None = None,
    pools: Sequence[Mapping[str, Any]] | None = None,
    enable_prefix_caching: bool | None = None,
    num_gpu_blocks_override: int | None = None,
    long_prefill_token_threshold: int = 0,
    async_scheduling: bool | None = None,
    scheduler_recv_interval: int = 1,
    batch_wait_timeout_iters: int = 0,
    batch_wait_max_tokens_ratio: float = 0.0,
    stops: str = "length",
    fast_forward: bool = True,
    progress: Callable[[int, int], None] | None = None,
    **words: Any,
) -> Outcome:
    """Serve a trace on a model, a machine and an engine; further keywords are those of `analyze`.

    ``data_parallel_size`` replicas share the requests by the ``router``. With ``prefill_replicas`` and
    ``decode_replicas`` prompts are read on some and answered on others. ``pools`` names replicas that differ:
    ``[{"gpu": "h200", "replicas": 2}, {"gpu": "a100-sxm-80gb", "role": "decode"}]``, each with any keyword of a plan.
    ``scheduler_recv_interval``: an engine that answers looks only every so many steps who has come (SGLang).
    ``batch_wait_timeout_iters``: it holds prompts back so many steps for company, up to a share of a step's tokens
    (``batch_wait_max_tokens_ratio``; TensorRT-LLM).
    ``stops``: answers end at their ``length`` (max_tokens, which an engine knows beforehand) or with a stop ``token``.
    """
    for what, given, allowed in (
        ("--scheduler", scheduler or "vllm", SCHEDULERS),
        ("--policy", policy, POLICIES),
        ("--router", router, ROUTERS),
        ("stops", stops, STOPS),
    ):
        if given not in allowed:
            raise UnknownName(what, given, allowed)
    if max_concurrency is not None:
        check_int("--max-concurrency", max_concurrency)
    if num_gpu_blocks_override is not None:
        check_int("--num-gpu-blocks-override", num_gpu_blocks_override)
    piece = check_int("--long-prefill-token-threshold", long_prefill_token_threshold, least=0)
    check_int("--scheduler-recv-interval", scheduler_recv_interval)
    check_int("--batch-wait-timeout-iters", batch_wait_timeout_iters, least=0)
    check_fraction("--batch-wait-max-tokens-ratio", batch_wait_max_tokens_ratio, "0 and 1")
    if batch_wait_timeout_iters and not batch_wait_max_tokens_ratio:
        raise BadValue(
            "--batch-wait-timeout-iters holds prompts back up to a share of a step's tokens: give "
            "--batch-wait-max-tokens-ratio, too"
        )
    words.setdefault("frontend", "http")
    made = []
    for each in _pools(gpu, words, pools, prefill_replicas, decode_replicas):
        role, count = each.pop("role"), each.pop("replicas")
        asked = build_request(model, **each)
        made.append((role, build_pool(asked, count * asked.plan.data_parallel_size, trace, num_gpu_blocks_override)))
    name = scheduler or made[0][1].bound_plan.engine.scheduler
    if batch_wait_timeout_iters and name != "trtllm":
        raise BadValue(f"--batch-wait-timeout-iters is of the scheduler trtllm, not of {name}")
    if scheduler_recv_interval > 1 and any(each.bound_plan.plan.pipeline_parallel_size > 1 for _, each in made):
        raise BadValue(
            "--scheduler-recv-interval counts the steps of one batch: it has no meaning with "
            "--pipeline-parallel-size above 1"
        )
    how = ServingOptions(
        name,
        policy,
        router,
        max_concurrency,
        piece,
        stops == "token",
        enable_prefix_caching,
        async_scheduling,
        scheduler_recv_interval,
        batch_wait_timeout_iters,
        batch_wait_max_tokens_ratio,
        fast_forward,
        progress,
    )
    return serve(trace, made, how)


def _pools(
    gpu: str, words: dict[str, Any], pools: Sequence[Mapping[str, Any]] | None, readers: int | None, writers: int | None
) -> list[dict[str, Any]]:
    """The words of every pool of replicas, with its role and how many there are."""
    if (readers is None) != (writers is None):
        raise BadValue(
            "--prefill-replicas and --decode-replicas come together: prompts are read on the first and "
            "answered on the second"
        )
    if readers is not None and pools is not None:
        raise BadValue("pools say themselves which replicas read and which answer: leave out --prefill-replicas")
    if readers is not None and writers is not None:
        pools = [{"role": "prefill", "replicas": readers}, {"role": "decode", "replicas": writers}]
    found = []
    for given in [{}] if pools is None else pools:
        if not isinstance(given, Mapping):
            raise BadValue(
                f'a pool must be a mapping such as {{"gpu": "h200", "replicas": 2}}, not {abbreviate(given)}'
            )
        unknown = next((word for word in given if word not in _WORDS and word not in ("role", "replicas")), None)
        if unknown is not None:
            raise UnknownName("word of a pool", unknown, {"role", "replicas", *_WORDS})
        each = {"gpu": gpu, **words, "role": "both", "replicas": 1, **given}
        if each["role"] not in ROLES:
            raise UnknownName("role of a pool", each["role"], ROLES)
        check_int("replicas of a pool", each["replicas"], most=10**5)
        found.append(each)
    roles = {each["role"] for each in found}
    if not found or roles not in ({"both"}, {"prefill", "decode"}):
        raise BadValue(
            "pools must all do both, or some read prompts (role prefill) and others answer (role decode); "
            f"given: {', '.join(sorted(roles)) or 'none'}"
        )
    return found
