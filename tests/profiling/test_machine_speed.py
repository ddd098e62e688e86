"""``profile --quick``: a file of this machine, what it says of vLLM's steps, and what predictions make of it."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import pytest

from inferometer import analyze, profile
from inferometer.base.errors import BadValue
from inferometer.inference.request import build_request
from inferometer.profiling import engine_steps, machine_speed
from inferometer.specs import catalog
from inferometer.specs.hosts import host, hosted_engine, machine, machine_device

H200 = {"device": "NVIDIA H200", "memory": 150.11e9, "uuid": "GPU-1", "driver": "580", "torch": "2.11", "cache": 0}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A run of ``profile --quick`` on an H200 whose figures are so many times the reference's."""
    reference = machine_speed._references(catalog.hardware("h200"))

    def run(spread: float = 1.0, **ratios: float) -> str:
        values = {name: value * ratios.get(name, 1.0) for name, value in reference.items()}
        steps = {name: values.pop(name) for name in engine_steps.step_references(host("h200-vm"))}
        steps["round_spread"] = spread
        monkeypatch.setattr(machine_speed, "_torch", lambda device: None)
        monkeypatch.setattr(machine_speed.machine, "describe", lambda torch, device: dict(H200))
        monkeypatch.setattr(machine_speed, "_measured_values", lambda *_: (dict(values), {}))
        monkeypatch.setattr(machine_speed, "engine_steps", lambda say: (steps, ""))
        path = tmp_path / "machine.toml"
        lines: list[str] = []
        profile(quick=True, output=str(path), say=lines.append)
        assert any(line.split()[-1] == "ratio" for line in lines) and "machine.toml written" in lines[-1]
        assert any("two speeds" in line for line in lines) == (spread > 1.3)
        return str(path)

    return run


def test_a_machine_like_the_reference_changes_nothing(quick: Any) -> None:
    path = quick(spread=1.6)
    for phase in ({"batch_size": 1}, {"batch_size": 64, "input_len": 4000}):
        plain = analyze("llama-3.1-8b", gpu="h200", host_profile="h200-vm", **phase).metrics
        corrected = analyze("llama-3.1-8b", gpu="h200", profile=path, **phase).metrics
        assert corrected.tpot_ms == pytest.approx(plain.tpot_ms, rel=1e-3)
        assert corrected.ttft_ms == pytest.approx(plain.ttft_ms, rel=2e-3)


def test_memory_clocks_and_host_correct_what_they_bound(quick: Any) -> None:
    path = quick(matrix_vector=1.05, product_burst=0.97, product_sustained=0.9, prompt_64=1.5, first_token_64=1.4)
    h200 = catalog.hardware("h200")
    device = machine_device(h200, machine(path, h200))
    assert device.memory_bandwidth == pytest.approx(1.05 * h200.memory_bandwidth, rel=1e-3)
    assert device.flops["fp8"] == pytest.approx(0.97 * h200.flops["fp8"], rel=1e-3)
    assert (1 + device.throttle) / 0.97 == pytest.approx((1 + h200.throttle) / 0.9, rel=1e-3)

    def metrics(**kwargs: Any) -> Any:
        return analyze("llama-3.1-8b", gpu="h200", **kwargs).metrics

    before, after = metrics(host_profile="h200-vm"), metrics(profile=path)
    assert 0.95 < after.tpot_ms / before.tpot_ms < 0.975, "weights are read faster; attention and gaps are as they were"
    long_before, long_after = (
        metrics(input_len=32000, **kwargs).ttft_ms for kwargs in ({"host_profile": "h200-vm"}, {"profile": path})
    )
    assert long_after / long_before == pytest.approx(1 / 0.9, rel=0.02)
    vllm = hosted_engine(catalog.engine("vllm"), host(path))
    reference = engine_steps.step_references(host("h200-vm"))
    assert vllm.launch["prefill_attention"] == pytest.approx(2.5e-4 + reference["prompt_64"] / 2 / 16, rel=1e-3)
    assert build_request("llama-3.1-8b", "h200", profile=path, host_profile="server").engine.host == "server"


def test_another_device_is_refused_and_its_host_is_not(quick: Any) -> None:
    path = quick()
    with pytest.raises(BadValue, match="was measured on 'NVIDIA H200', not on h100-sxm"):
        analyze("llama-3.1-8b", gpu="h100-sxm", profile=path)
    assert analyze("llama-3.1-8b", gpu="h100-sxm", host_profile=path).to_dict()["engine"]["host"] == "machine"
    with pytest.raises(BadValue, match="matrix_vector is 9 times its reference"):
        analyze("llama-3.1-8b", gpu="h200", profile=quick(matrix_vector=9.0))


def test_one_failure_costs_one_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(machine_speed, "_LAUNCHES", 3)
    monkeypatch.setattr(machine_speed, "_REPEATS", 1)
    monkeypatch.setattr(machine_speed, "_SMALL", ((64, 64, 1),))

    def broken(bench: Any) -> float:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(machine_speed, "_matrix_vector", broken)
    lines: list[str] = []
    path = tmp_path / "cpu.toml"
    result = profile(quick=True, device="cpu", output=str(path), say=lines.append)
    assert set(result["figures"]) == {"launch", "python_loop", "product_burst"}
    assert result["missing"] == {"matrix_vector": "RuntimeError: CUDA error: out of memory"}
    assert host(str(path)).figures["launch"].value == pytest.approx(host(str(path)).launch, rel=1e-3)


class FakeEngine:
    """vLLM's engine on a clock of its own: the seconds of `step_references` for whatever a step has."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self.seconds, self.now, self.waiting = seconds, 0.0, dict[str, list[int]]()
        self.scheduler_config = types.SimpleNamespace(long_prefill_token_threshold=0)
        self.engine_core = types.SimpleNamespace(engine_core=types.SimpleNamespace(scheduler=self))
        self.slowdown, self.slowdowns = 1.0, iter(tuple[float, ...]())

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: Any) -> None:
        self.now += (
            self.seconds["first_token_64"] - self.seconds["prompt_64"] if len(prompt["prompt_token_ids"]) > 16 else 0
        )
        self.waiting[name] = [len(prompt["prompt_token_ids"]), sampling.max_tokens]

    def pause(self, seconds: float) -> None:
        """Between rounds; a neighbour may come or go."""
        self.slowdown = next(self.slowdowns, 1.0)

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        outputs, prompts = [], 0
        for name, left in list(self.waiting.items()):
            tokens = min(left[0], self.scheduler_config.long_prefill_token_threshold or 16)
            prompts, left[0] = prompts + tokens, left[0] - tokens
            if left[0] == 0:
                left[1] -= 1
                outputs.append(types.SimpleNamespace(outputs=[types.SimpleNamespace(token_ids=[1])]))
            if left[1] == 0:
                del self.waiting[name]
        took = self.seconds.get(f"prompt_{prompts}", self.seconds.get(f"decode_{len(outputs)}", 0.1))
        self.now += self.slowdown * took
        return outputs


@pytest.fixture
def small_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the process of the small engine leaves, where steps take so many times as long after each round."""

    def run(seconds: dict[str, float], *slowdowns: float) -> dict[str, float]:
        fake = FakeEngine(seconds)
        fake.slowdowns = iter(slowdowns)
        small = types.SimpleNamespace(llm_engine=fake)
        vllm = types.SimpleNamespace(LLM=lambda **options: small, SamplingParams=types.SimpleNamespace)
        clock = types.SimpleNamespace(perf_counter=lambda: fake.now, sleep=fake.pause)
        monkeypatch.setattr(engine_steps, "optional_library", lambda name: vllm)
        monkeypatch.setattr(engine_steps, "time", clock)
        engine_steps.main(str(tmp_path))
        steps: dict[str, float] = json.loads((tmp_path / "steps.json").read_text())
        return steps

    return run


def test_a_host_with_two_speeds_is_taken_at_its_mean(small_engine: Any) -> None:
    seconds = engine_steps.step_references(host("h200-vm"))
    steps = small_engine(seconds, 1.0, 1.75, 1.75)  # two rounds of five beside a neighbour
    assert steps["round_spread"] == pytest.approx(1.75, rel=0.01)
    assert steps["decode_8"] == pytest.approx(1.3 * seconds["decode_8"])
    assert steps["prompt_600"] == pytest.approx(1.3 * seconds["prompt_600"])


def test_steps_of_the_small_engine_are_told_apart(small_engine: Any) -> None:
    seconds = engine_steps.step_references(host("h200-vm"))
    steps = small_engine(seconds)
    assert steps.pop("round_spread") == pytest.approx(1)
    assert steps == pytest.approx(seconds)
    seen, known = engine_steps.hosted_seconds(steps, 8e-6), host("h200-vm").engines["vllm"]
    assert seen is not None and seen.launch["prefill_attention"] == pytest.approx(2.5e-4)
    for field in ("step_floor", "step_floor_per_sequence", "request_overhead"):
        assert getattr(seen, field) == pytest.approx(getattr(known, field)), field
    assert seen.launch_factor == pytest.approx(1, rel=0.01)
