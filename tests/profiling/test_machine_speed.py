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

    def run(**ratios: float) -> str:
        values = {name: value * ratios.get(name, 1.0) for name, value in reference.items()}
        steps = {name: values.pop(name) for name in engine_steps.step_references(host("h200-vm"))}
        monkeypatch.setattr(machine_speed, "_torch", lambda device: None)
        monkeypatch.setattr(machine_speed.machine, "describe", lambda torch, device: dict(H200))
        monkeypatch.setattr(machine_speed, "_measured_values", lambda *_: (dict(values), {}))
        monkeypatch.setattr(machine_speed, "engine_steps", lambda say: (steps, {}))
        path = tmp_path / "machine.toml"
        lines: list[str] = []
        profile(quick=True, output=str(path), say=lines.append)
        assert any(line.split()[-1] == "ratio" for line in lines) and "machine.toml written" in lines[-1]
        return str(path)

    return run


def test_a_machine_like_the_reference_changes_nothing(quick: Any) -> None:
    path = quick()
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

    def __init__(self, seconds: dict[str, float], network: str) -> None:
        self.seconds, self.network, self.now, self.waiting = seconds, network, 0.0, dict[str, list[int]]()
        self.scheduler_config = types.SimpleNamespace(long_prefill_token_threshold=0)
        self.engine_core = types.SimpleNamespace(engine_core=types.SimpleNamespace(scheduler=self))

    def add_request(self, name: str, prompt: dict[str, list[int]], sampling: Any) -> None:
        self.now += (
            self.seconds["first_token_64"] - self.seconds["prompt_64"] if len(prompt["prompt_token_ids"]) > 16 else 0
        )
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
                outputs.append(types.SimpleNamespace(request_id=name, finished=left[1] == 0, outputs=[token]))
            if left[1] == 0:
                del self.waiting[name]
        self.now += self.step_seconds(prompts, len(outputs), len(self.waiting))
        return outputs

    def step_seconds(self, prompts: int, decoding: int, waiting: int) -> float:
        """As measured for this network; for the dense one where a step says nothing of it."""
        beside = "_beside" if self.network == "recurrent" and waiting > 1 else ""
        for name in (f"prompt_{prompts}{beside}", f"decode_{decoding}"):
            for of in (f"{name}_{self.network}", name):
                if of in self.seconds:
                    return self.seconds[of]
        return 0.1


def test_steps_of_the_small_engines_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = engine_steps.step_references(host("h200-vm"))
    steps: dict[str, float] = {}
    for network in engine_steps.CONFIGS:
        fake = FakeEngine(seconds, network)
        small = types.SimpleNamespace(llm_engine=fake)
        vllm = types.SimpleNamespace(LLM=lambda small=small, **options: small, SamplingParams=types.SimpleNamespace)
        monkeypatch.setattr(engine_steps, "optional_library", lambda name, vllm=vllm: vllm)
        monkeypatch.setattr(engine_steps, "time", types.SimpleNamespace(perf_counter=lambda fake=fake: fake.now))
        engine_steps.main(str(tmp_path), network)
        steps |= json.loads((tmp_path / "steps.json").read_text())
    assert steps == pytest.approx(seconds)
    seen, known = engine_steps.hosted_seconds(steps, 8e-6), host("h200-vm").engines["vllm"]
    assert seen is not None and seen.launch["prefill_attention"] == pytest.approx(2.5e-4)
    for field in ("step_floor", "step_floor_per_sequence", "request_overhead"):
        assert getattr(seen, field) == pytest.approx(getattr(known, field)), field
    assert seen.launch_factor == pytest.approx(1, rel=0.01)
    assert seen.step_floor_per_state_group == pytest.approx(catalog.engine("vllm").step_floor_per_state_group)
    for kind in ("moe", "chunk_scan", "state_update"):
        assert seen.launch[kind] == pytest.approx(known.launch[kind], rel=0.02), kind


def test_launches_of_experts_and_of_mamba_layers_are_their_own(quick: Any) -> None:
    """A step of the small network with experts that takes longer is laid to their launches, and to nothing else."""
    reference = engine_steps.step_references(host("h200-vm"))
    plain, known = hosted_engine(catalog.engine("vllm"), host(quick())), host("h200-vm").engines["vllm"].launch
    slower = hosted_engine(catalog.engine("vllm"), host(quick(prompt_600_experts=1.5, triton_launch=0.7)))
    more = reference["prompt_600_experts"] / 2 / engine_steps.LAYERS
    assert slower.launch["moe"] == pytest.approx(known["moe"] + more, rel=0.01)
    assert {**slower.launch, "moe": 0} == pytest.approx({**plain.launch, "moe": 0})
    hybrid = hosted_engine(catalog.engine("vllm"), host(quick(prompt_64_recurrent=1.5)))
    assert hybrid.launch["chunk_scan"] > 1.4 * known["chunk_scan"] and hybrid.launch["moe"] == plain.launch["moe"]
    assert hybrid.launch["state_update"] == 0, "the step beside a sequence that decodes took no longer"
