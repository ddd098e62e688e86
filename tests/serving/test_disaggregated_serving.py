"""Prefill and decode replicas run one after the other give what the cluster gives, event by event."""

from __future__ import annotations

import numpy as np
import pytest

from inferometer.serving import deployment
from inferometer.serving.arrivals import OpenLoop
from inferometer.serving.outcome import Outcome
from inferometer.serving.router import Cluster, Fleet
from inferometer.serving.simulate import simulate
from inferometer.serving.synthetic import synthetic


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
