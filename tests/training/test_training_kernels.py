"""Training's kernels on Hopper and Blackwell, and what Megatron-Bridge's flags change."""

from __future__ import annotations

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from inferometer import TrainReport, train
from inferometer.base.errors import BadValue
from inferometer.specs import catalog
from inferometer.training.passes import Recipe, training_constants
from inferometer.training.training_kernels import product_share, training_kernels

ROOT = Path(__file__).resolve().parents[2]
DENSE: dict[str, Any] = {"gpu": "b200", "data_parallel_size": 8, "seq_len": 4096, "global_batch_size": 32}
MIXTURE: dict[str, Any] = {**DENSE, "expert_model_parallel_size": 8, "zero": 1}


def dense(**given: Any) -> TrainReport:
    return train("llama-3.1-8b", **{**DENSE, **given})


def mixture(**given: Any) -> TrainReport:
    return train("qwen3-30b-a3b", **{**MIXTURE, **given})


# ------------------------------------------------------------------ power and casts


def test_power_limits_long_products() -> None:
    """1,000 W at 0.97 pJ are 1,031 TFLOP/s of 2,250; more watts are faster, up to the share that is reached at most."""
    device, figures = catalog.hardware("b200"), training_constants().kernels["blackwell"]
    assert training_kernels(device) is figures
    share = product_share(device, Recipe(), figures, "mlp")
    assert share * device.flops["bf16"] == pytest.approx(1000 / 0.97e-12) and share < figures.most
    assert product_share(catalog.hardware("b200:power=5000"), Recipe(), figures, "mlp") == figures.most
    eight = Recipe(precision="mxfp8")
    assert product_share(device, eight, figures, "mlp") * device.flops["fp8"] == pytest.approx(1000 / 0.42e-12)
    assert product_share(device, eight, figures, "head") == share, "the head stays in 16 bits"
    seconds = [dense(gpu=f"b200:power={watts}").step_seconds for watts in (700, 1000, 1400)]
    assert seconds == sorted(seconds, reverse=True) and seconds[0] > 1.2 * seconds[2]
    assert training_kernels(catalog.hardware("a100-sxm-80gb")) is None, "whose shares were seen are as they were"


def test_formats_are_faster_the_fewer_bits_they_have() -> None:
    reports = [dense(precision=name) for name in ("bf16", "fp8", "nvfp4")]
    assert all(a.step_seconds > b.step_seconds for a, b in itertools.pairwise(reports))
    assert all(a.model_flops == b.model_flops for a, b in itertools.pairwise(reports))


def test_weights_in_eight_bits_alone_by_hand() -> None:
    """Two copies of a byte, by rows and by columns, and one of them travels; else 16 bits beside both."""
    parameters = 8_030_261_248
    both, alone = (dense(precision="fp8", zero=1, fp8_param_gather=flag) for flag in (False, True))
    assert both.memory.weights_bytes == parameters * 4 and alone.memory.weights_bytes == parameters * 2
    sent = {op.name: op.sent for op in alone.phases["data_parallel"].ops}
    assert sent["gather_weights"] == pytest.approx(7 / 8 * parameters)
    with pytest.raises(BadValue, match="fp8_param_gather"):
        dense(fp8_param_gather=True)


# ------------------------------------------------------------------ adapters, packing, more tokens, offload


def test_frozen_weights_have_no_gradients() -> None:
    whole, adapters = dense(), dense(lora_rank=16, lora_targets=["o_proj", "down_proj"])
    trained = 32 * 16 * (4096 + 4096 + 14336 + 4096)
    assert adapters.memory.gradients_bytes == 4 * trained and adapters.memory.optimizer_bytes == 12 * trained
    names = {op.name for op in adapters.phases["backward"].ops}
    assert {"o_proj_dgrad", "o_proj_lora_a_wgrad", "o_proj_lora_b_dgrad"} <= names
    assert not names & {"o_proj_wgrad", "embed_tokens_wgrad", "lm_head_wgrad"}
    assert 0.6 < adapters.step_seconds / whole.step_seconds < 0.85
    assert adapters.memory.activation_bytes < whole.memory.activation_bytes
    with pytest.raises(BadValue, match="lora_rank"):
        dense(lora_targets="o_proj")


def test_packed_sequences_attend_to_themselves() -> None:
    whole, packed = dense(), dense(packed_sequences=4)

    def flops(report: TrainReport, name: str) -> float:
        return sum(op.flops for op in report.phases["forward"].ops if op.name == name)

    assert flops(packed, "down_proj") == flops(whole, "down_proj")
    assert flops(packed, "attention") / flops(whole, "attention") == pytest.approx(4 * 1024 * 1025 / (4096 * 4097))
    assert dense(packed_sequences=1).to_dict() == whole.to_dict()
    with pytest.raises(BadValue, match="does not divide"):
        dense(packed_sequences=3)


def test_prediction_of_further_tokens_adds_a_layer_and_a_head() -> None:
    given = {"gpu": "gb300", "data_parallel_size": 64, "expert_model_parallel_size": 64, "seq_len": 4096, "zero": 1}
    plain, more = train("deepseek-v3", **given), train("deepseek-v3", **given, mtp_num_layers=1)
    assert 1.02 < more.model_flops / plain.model_flops < 1.06
    assert not any("multi-token" in text for text in more.warnings)
    assert any("multi-token" in text for text in plain.warnings)
    with pytest.raises(BadValue, match="no multi-token-prediction"):
        dense(mtp_num_layers=1)


def test_offloaded_activations_are_in_the_hosts_memory() -> None:
    here, away = dense(), dense(cpu_offloading_num_layers=16)
    assert away.memory.activation_bytes < 0.6 * here.memory.activation_bytes
    assert away.breakdown.host > here.breakdown.host, "PCIe is slower than a layer"
    assert dense(gpu="gb200", cpu_offloading_num_layers=16).breakdown.host < away.breakdown.host, "NVLink-C2C is not"


# ------------------------------------------------------------------ experts and the host


def test_dispatchers_of_tokens() -> None:
    """Eight of 128 experts on eight ranks: a copy for each of them, or one for each rank that has some."""
    plain, flex = mixture(), mixture(moe_flex_dispatcher_backend="hybridep")
    copies = 8 * (1 - (1 - 1 / 8) ** 8)

    def sent(report: TrainReport) -> float:
        return sum(op.sent for op in report.phases["forward"].ops if op.name == "dispatch")

    assert sent(flex) / sent(plain) == pytest.approx(copies / 8)
    hidden = mixture(moe_flex_dispatcher_backend="hybridep", overlap_moe_expert_parallel_comm=True)
    assert hidden.breakdown.ep_comm < flex.breakdown.ep_comm < plain.breakdown.ep_comm
    fused = mixture(precision="mxfp8", use_transformer_engine_op_fuser=True)
    assert fused.step_seconds < mixture(precision="mxfp8").step_seconds


def test_cuda_graphs_take_the_host_out() -> None:
    seconds = [
        mixture(cuda_graph_impl=name).breakdown.host for name in ("none", "transformer_engine", "full_iteration")
    ]
    assert seconds[0] > seconds[1] > seconds[2] == 0
    parts = mixture().breakdown
    assert sum(getattr(parts, name) for name in parts.__struct_fields__) == pytest.approx(mixture().step_seconds)
    large = mixture(micro_batch_size=4)
    assert large.breakdown.host < 0.3 * parts.host, "kernels of larger micro-batches take longer than their launches"


# ------------------------------------------------------------------ published runs


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_training_runs", ROOT / "benchmarks" / "training_runs.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_training_runs"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_published_runs() -> None:
    """docs/accuracy/training.md says what the code says, and the code is as near to published runs as it should be."""
    bench = _benchmark()
    rows = bench.bridge_answers()
    assert len({row.run.name.split()[0] for row in rows}) >= 120
    assert bench.mean_error(row.error for row in rows) < 0.08
    assert all(row.roofline < row.run.seconds for row in rows), "nothing beats its roofline"
    assert bench.mean_error(row.error for row, _ in bench.simumax_answers()) < 0.06
    assert bench.mean_error(memory for _, memory in bench.simumax_answers()) < 0.02
    apart = bench.left_out_errors()
    assert float(apart["all gpus"]["error"]) < 0.12
    page = (ROOT / "docs" / "accuracy" / "training.md").read_text(encoding="utf-8")
    section = page.partition("<!-- training-runs:begin -->\n")[2].partition("\n<!-- training-runs:end -->")[0]
    assert section == bench.markdown().rstrip("\n"), "run benchmarks/accuracy.py --no-servers --write"


@pytest.mark.slow
def test_llama_405b_as_its_paper_has_it() -> None:
    """Feasible, and its utilization within three points."""
    for run, arguments in _benchmark().llama_runs():
        report = train("llama-3.1-405b", gpu="h100-sxm", **arguments)
        assert report.feasible and report.plan["gpus"] == run["gpus"]
        assert report.micro_batches == run["sequences"]
        assert report.model_flops_utilization == pytest.approx(run["mfu"], abs=0.03)


def test_biases_of_experts_are_passes_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """gpt-oss: 28 bytes forward and 40 backward for each element of the outputs, also with the op fuser."""
    given = {"gpu": "b200", "data_parallel_size": 8, "expert_model_parallel_size": 8, "zero": 1, "seq_len": 4096}
    plain, fused = (train("gpt-oss-120b", use_transformer_engine_op_fuser=on, **given) for on in (False, True))
    assert fused.step_seconds == pytest.approx(plain.step_seconds)
    constants, bandwidth = training_constants(), catalog.hardware("b200").memory_bandwidth
    none = msgspec.structs.replace(constants.expert_biases, forward=0.0, backward=0.0)
    monkeypatch.setattr(
        "inferometer.training.training_kernels.training_constants",
        lambda: msgspec.structs.replace(constants, expert_biases=none),
    )
    without = train("gpt-oss-120b", **given)
    elements = 4096 * 4 * 2880 * 36  # tokens, experts of each, hidden size, layers; experts are evenly loaded
    for phase, size in (("forward", 28), ("backward", 40)):
        more = sum(op.seconds for op in plain.phases[phase].ops) - sum(op.seconds for op in without.phases[phase].ops)
        assert more == pytest.approx(elements * size / (bandwidth * constants.kernels["blackwell"].memory), rel=1e-6)
