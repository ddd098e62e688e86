"""Prefill and decode replicas run one after the other give what the cluster gives, event by event."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.costs import host
from inferometer.inference.request import build_request
from inferometer.serving import deployment, router
from inferometer.serving.arrivals import OpenLoop
from inferometer.serving.batch import DecodeBatch
from inferometer.serving.kv_cache import kv_transfer_seconds
from inferometer.serving.outcome import Outcome
from inferometer.serving.request_table import RequestTable
from inferometer.serving.router import Cluster, Fleet
from inferometer.serving.simulate import simulate
from inferometer.serving.step_cost import step_cost
from inferometer.serving.synthetic import synthetic
from inferometer.serving.trace import Trace


@pytest.mark.parametrize(("rate", "prefill", "decode"), [(5.0, 1, 1), (40.0, 3, 5), (80.0, 2, 1)])
def test_pools_one_after_the_other_are_the_cluster(
    rate: float, prefill: int, decode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = synthetic(
        num_prompts=250,
        request_rate=rate,
        input_len="uniform:min=20,max=3000",
        output_len="uniform:min=1,max=200",
        seed=2,
    )
    used = []

    def run() -> Outcome:
        return simulate("llama-3.1-8b", "h200", trace=trace, prefill_replicas=prefill, decode_replicas=decode)

    apart = run()

    def through(source: OpenLoop, first: Fleet, second: Fleet, sent: list[float], short: list[bool]) -> None:
        used.append(True)
        Cluster(source, [first, second], sent, short).run()

    monkeypatch.setattr(deployment, "run_disaggregated", through)
    together = run()
    assert used
    for name in ("first_token_s", "finished_s", "scheduled_s"):
        np.testing.assert_allclose(getattr(apart, name), getattr(together, name), rtol=1e-9)
    assert (apart.replica == together.replica).all() and apart.steps == together.steps


def transfer(prefill: dict[str, int], decode: dict[str, int], gpus: int | None = None) -> float:
    plans = [build_request("deepseek-r1", "b200", engine="trtllm", **plan).bind() for plan in (prefill, decode)]
    return kv_transfer_seconds(plans[0], plans[1], np.array([8192]), gpus)[0]


def test_a_cache_that_every_rank_keeps_is_sent_to_every_rank() -> None:
    """A latent cache is not split over tensor-parallel ranks: one rank sends it eight times, eight send it once."""
    ranks = {"data_parallel_size": 8, "enable_expert_parallel": True}
    alike = transfer({"tensor_parallel_size": 8}, {"tensor_parallel_size": 8})
    assert transfer({"tensor_parallel_size": 4}, {"tensor_parallel_size": 8}) == pytest.approx(2 * alike, rel=1e-3)
    assert transfer(ranks, {"tensor_parallel_size": 8}) == pytest.approx(8 * alike, rel=1e-3)
    assert transfer(ranks, ranks) == pytest.approx(alike, rel=1e-3), "a rank sends to one rank"


def test_caches_go_by_nvlink_where_it_joins_all_gpus() -> None:
    plan = {"tensor_parallel_size": 4}
    near, far = transfer(plan, plan, gpus=8), transfer(plan, plan, gpus=16)
    assert far == transfer(plan, plan) == pytest.approx(900 / 50 * near, rel=0.01)


def test_a_prompt_whose_cache_has_come_is_decoded_like_any_answer() -> None:
    cost = step_cost(build_request("llama-3.1-8b", "h200").bind(), 4096)
    batch = DecodeBatch(8, 16)
    batch.join(0, 1000, 50)
    joined = cost.mixed_seconds(batch, [(1, 1, 499)], 1)
    batch.join(1, 499, 50)
    assert joined == pytest.approx(cost.decode_seconds(batch), rel=1e-9)
    alone = DecodeBatch(8, 16)
    alone.join(1, 499, 50)
    assert cost.mixed_seconds(None, [(1, 1, 499)], 1) == pytest.approx(cost.decode_seconds(alone), rel=1e-9)


def test_an_engine_that_launches_first_sends_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's overlap: where prompts wait, the next step is launched before the last one's cache is sent."""
    trace = Trace(input_tokens=np.full(2, 8000), output_tokens=np.full(2, 2), arrival_s=np.array([0.0, 0.01]))
    options = {"engine": "sglang", "prefill_replicas": 1, "decode_replicas": 1, "max_num_batched_tokens": 8192}
    after = simulate("llama-3.1-8b", "h200", trace=trace, **options)
    monkeypatch.setattr(router, "_result_delay", lambda replica: 0.0)
    at_once = simulate("llama-3.1-8b", "h200", trace=trace, **options)
    request = build_request("llama-3.1-8b", "h200", engine="sglang")
    launch_s = sum(host.launch_seconds(request.model, request.engine))
    late = after.first_token_s - at_once.first_token_s
    assert late[0] == pytest.approx(launch_s, abs=1e-9) and late[1] == 0, "nothing waits behind the last one"


def test_front_ends_tokenize_side_by_side() -> None:
    trace = Trace(input_tokens=np.full(64, 2000), output_tokens=np.full(64, 2), arrival_s=np.zeros(64))
    ready = [
        OpenLoop(
            list(range(64)), [0.0] * 64, RequestTable([2000] * 64, [2] * 64).arrival_s, 0.0, [0.01] * 64, count
        ).ready
        for count in (1, 4)
    ]
    assert ready[0][63] == pytest.approx(0.64) and ready[1][63] == pytest.approx(0.16)
    one, four = (
        simulate("llama-3.1-8b", "h200", trace=trace, max_concurrency=64, api_server_count=count) for count in (1, 4)
    )
    assert four.scheduled_s[1] < one.scheduled_s[1] and four.finished_s[-1] != one.finished_s[-1]
