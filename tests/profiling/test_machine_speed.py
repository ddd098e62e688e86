"""``profile --quick``: a file of this machine, what it says of vLLM's steps, and what predictions make of it."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any, ClassVar

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
        steps = {name: values.pop(name) for name in engine_steps.STEPS}
        steps["round_spread"] = spread
        monkeypatch.setattr(machine_speed, "_torch", lambda device: None)
        monkeypatch.setattr(machine_speed.machine, "describe", lambda torch, device: dict(H200))
        monkeypatch.setattr(machine_speed, "_measured_values", lambda *_: (dict(values), {}))
        monkeypatch.setattr(machine_speed, "engine_steps", lambda say: (steps, {}))
        path = tmp_path / "machine.toml"
        lines: list[str] = []
        profile(quick=True, output=str(path), say=lines.append)
        assert any(line.split()[-1] == "ratio" for line in lines) and "machine.toml written" in lines[-1]
        assert any("two speeds" in line for line in lines) == (spread > 1.3)
        return str(path)

    return run


def test_a_machine_like_the_reference_changes_little(quick: Any) -> None:
    path = quick(spread=1.6)
    for model in ("llama-3.1-8b", "qwen3-30b-a3b", "nemotron-h-8b"):
        for phase in ({"batch_size": 1}, {"batch_size": 64, "input_len": 4000}):
            plain = analyze(model, gpu="h200", host_profile="h200-vm", **phase).metrics
            corrected = analyze(model, gpu="h200", profile=path, **phase).metrics
            assert corrected.tpot_ms == pytest.approx(plain.tpot_ms, rel=1e-3)
            assert corrected.ttft_ms == pytest.approx(plain.ttft_ms, rel=0.003 if "input_len" in phase else 0.1)


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
    like = host(quick()).engines["vllm"].launch["prefill_attention"]
    added = engine_steps.SERVING * host("h200-vm").figures["prompt_64"].value / 2 / 16
    assert vllm.launch["prefill_attention"] == pytest.approx(like + added, rel=1e-3)
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
    """vLLM's engine on a clock of its own: the seconds of steps by name, for whatever a step has."""

    def __init__(self, seconds: dict[str, float], network: str) -> None:
        self.seconds, self.now, self.waiting = seconds, 0.0, dict[str, list[int]]()
        self.kind = "" if network == engine_steps.DENSE else f"_{network}"
        self.scheduler_config = types.SimpleNamespace(long_prefill_token_threshold=0)
        self.engine_core = types.SimpleNamespace(engine_core=types.SimpleNamespace(scheduler=self))
        self.slowdown = 1.0

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: Any) -> None:
        if len(prompt["prompt_token_ids"]) > 16:
            self.now += self.slowdown * (self.seconds["first_token_64"] - self.seconds["prompt_64"])
        self.waiting[name] = [len(prompt["prompt_token_ids"]), sampling.max_tokens]

    def has_unfinished_requests(self) -> bool:
        return bool(self.waiting)

    def step(self) -> list[Any]:
        outputs, prompts = [], 0
        for name, left in list(self.waiting.items()):
            tokens = min(left[0], self.scheduler_config.long_prefill_token_threshold or 16)
            prompts, left[0] = prompts + tokens, left[0] - tokens
            if left[0] == 0:
                left[1] -= 1
                token = types.SimpleNamespace(token_ids=[1])
                outputs.append(types.SimpleNamespace(request_id=name, outputs=[token], finished=left[1] == 0))
            if left[1] == 0:
                del self.waiting[name]
        beside = "_beside" if prompts in (64, 600) and len(self.waiting) > 1 else ""
        names = (f"prompt_{prompts}{beside}{self.kind}", f"decode_{len(outputs)}{self.kind}")
        self.now += self.slowdown * next((self.seconds[name] for name in names if name in self.seconds), 0.1)
        return outputs


class FakeProcess(engine_steps.EngineProcess):
    """The same process without one: a round is timed on the spot, by an engine on a clock of its own."""

    seconds: ClassVar[dict[str, float]] = {}
    slowdowns: tuple[float, ...] = ()  # of each round
    breaks: str = ""  # the network whose engine does not start

    def __init__(self, folder: Path, network: str) -> None:
        self.network, self.done = network, list[dict[str, float]]()
        self.fake = FakeEngine(self.seconds, network)
        small = types.SimpleNamespace(llm_engine=self.fake)
        vllm = types.SimpleNamespace(LLM=lambda **options: small, SamplingParams=types.SimpleNamespace)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_steps, "optional_library", lambda name: vllm)
            self.engine = engine_steps.SmallEngine(str(folder))

    def start_round(self) -> None:
        round_number = len(self.done)
        self.fake.slowdown = self.slowdowns[round_number] if round_number < len(self.slowdowns) else 1.0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(engine_steps, "time", types.SimpleNamespace(perf_counter=lambda: self.fake.now))
            self.done.append(self.engine.steps(self.network))

    def wait(self, rounds: int, until: float) -> str:
        return "RuntimeError: no kernel image" if self.network == self.breaks else ""

    def rounds(self) -> list[dict[str, float]]:
        return self.done

    def end(self) -> None:
        self.done = list(self.done)


@pytest.fixture
def small_engines(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What small engines give whose steps take so long, in rounds so many times as long."""
    monkeypatch.setattr(engine_steps, "PAUSE", 0.0)
    monkeypatch.setattr(engine_steps, "is_installed", lambda name: True)

    def run(seconds: dict[str, float], *slowdowns: float, breaks: str = "") -> Any:
        process = type("Process", (FakeProcess,), {"seconds": seconds, "slowdowns": slowdowns, "breaks": breaks})
        monkeypatch.setattr(engine_steps, "EngineProcess", process)
        return engine_steps.engine_steps(lambda line: None)

    return run


def middle() -> dict[str, float]:
    """Steps of the middle one of the machines that were measured."""
    return {name: host("h200-vm").figures[name].value for name in engine_steps.STEPS}


def test_a_host_with_two_speeds_is_taken_at_its_mean(small_engines: Any) -> None:
    steps, _ = small_engines(middle(), 1.0, 1.75, 1.75)  # two rounds of five beside a neighbour
    assert steps["round_spread"] == pytest.approx(1.75, rel=0.01)
    for name in ("decode_8", "prompt_600", "prompt_600_experts", "prompt_64_recurrent"):
        assert steps[name] == pytest.approx(1.3 * middle()[name]), name


def test_steps_of_the_small_engines_are_told_apart(small_engines: Any) -> None:
    steps, missing = small_engines(middle())
    assert steps.pop("round_spread") == pytest.approx(1) and not missing
    assert steps == pytest.approx(middle())
    seen = engine_steps.hosted_seconds(steps, 8e-6)
    assert seen is not None
    launches = {"prefill_attention": 0.134e-3, "moe": 0.918e-3, "chunk_scan": 0.973e-3, "state_update": 0.374e-3}
    assert seen.launch == pytest.approx({kind: 1.25 * each for kind, each in launches.items()}, rel=0.02)
    assert seen.step_floor == pytest.approx(1.25 * (1.46e-3 - 1.7e-4 - 1.4e-5), rel=0.01)


def test_a_network_that_does_not_start_costs_its_own_figures(small_engines: Any) -> None:
    steps, missing = small_engines(middle(), breaks="recurrent")
    assert missing == {"engine_steps_recurrent": "RuntimeError: no kernel image"}
    assert "prompt_600_experts" in steps and not any("recurrent" in name for name in steps)
    seen = engine_steps.hosted_seconds(steps, 8e-6)
    assert seen is not None and set(seen.launch) == {"prefill_attention", "moe"}
    assert small_engines(middle(), breaks="dense")[0] == {}


def test_a_process_that_ends_says_why(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    process = engine_steps.EngineProcess(tmp_path / "dense", "dense")
    try:
        why = process.wait(0, until=1e12)
    finally:
        process.end()
    assert "vllm" in why and process.rounds() == []
