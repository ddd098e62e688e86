"""Training: gradients as operators, what is kept for them, layouts, and published iterations."""

from __future__ import annotations

import csv
import importlib.util
import io
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from conftest import ROOT, Ran
from helpers import peers
from helpers.peers import llm_analysis
from hypothesis import given, settings
from hypothesis import strategies as st

from inferometer import BadValue, TrainReport, UnknownName, train
from inferometer.base.errors import InferometerError
from inferometer.base.symbols import evaluate
from inferometer.base.symbols import names as s
from inferometer.network.operators import KINDS, all_gather, all_reduce, attention, linear, norm, reduce_scatter
from inferometer.training.backward import SERVING, backward, stash
from inferometer.training.iteration import PRODUCTS
from inferometer.training.passes import RECOMPUTE, Recipe, stage_passes, training_block
from inferometer.training.recompute import kept_bytes_of
from inferometer.training.training_kernels import wave_occupancy

Run = Callable[..., Ran]
SMALL = "smollm2-360m"
ENV: dict[str, float] = {
    "tokens": 96,
    "tp": 4,
    "sp": 4,
    "act_bytes": 2,
    "grad_bytes": 4,
    "eager": 0,
    "unfused": 1,
    "norm_bytes": 2,
    "kv_bytes": 2,
    "mlp_weight_bytes": 2,
    "mlp_input_bytes": 2,
    "prefill_tokens": 96,
    "prefill_kv": 96,
    "prefill_qk": 4656,
    "prefill_dense": 9216,
    "prefill_seqs": 1,
}


def value(formula: Any, **more: float) -> float:
    return float(evaluate(formula, {**ENV, **more}))


def ops(report: TrainReport, phase: str, name: str, field: str) -> float:
    return float(sum(getattr(op, field) for op in report.phases[phase].ops if op.name == name))


# ------------------------------------------------------------------ operators


@settings(deadline=None, max_examples=50)
@given(st.integers(1, 512), st.integers(1, 512), st.sampled_from(["", "row", "column"]), st.integers(1, 4096))
def test_gradients_of_a_product(k: int, n: int, shard: str, tokens: int) -> None:
    """As many FLOPs as the product, each; what one pass reads another has written or kept."""
    op = linear("proj", k, n, shard=shard)
    dgrad, wgrad = backward(op)
    my_k, my_n = k / (4 if shard == "row" else 1), n / (4 if shard == "column" else 1)
    for report in (dgrad, wgrad):
        assert (
            value(report.work.flops, tokens=tokens) == value(op.work.flops, tokens=tokens) == 2 * tokens * my_k * my_n
        )
    assert value(dgrad.work.weights) == value(op.work.weights)
    assert value(dgrad.work.reads, tokens=tokens) == value(op.work.writes, tokens=tokens)
    assert value(dgrad.work.writes, tokens=tokens) == value(op.work.reads, tokens=tokens)
    assert value(wgrad.work.writes) == my_k * my_n * 4
    assert value(wgrad.work.reads, tokens=tokens) == (my_k + my_n) * tokens * 2 + my_k * my_n * 4
    assert value(stash(op).input, tokens=tokens) == value(op.work.reads, tokens=tokens)
    assert (dgrad.kind, wgrad.kind) == ("linear", "linear"), "measured products answer for gradients, too"


def test_gradients_of_attention() -> None:
    """Flash: five products for two, and never the scores; eager: four, and the probabilities are kept."""
    op = attention("attention", "prefill", heads=8, kv_heads=2, qk_dim=64, v_dim=64)
    (back,) = backward(op)
    assert value(back.work.flops) == 2.5 * value(op.work.flops)
    assert value(back.work.flops, eager=1) == 2 * value(op.work.flops, eager=1)
    qkv, out, scores = (8 + 2 * 2) * 64 * 96 * 2, 8 * 64 * 96 * 2, 8 * 96 * 96 * 2
    assert value(back.work.reads) == qkv + 2 * out and value(back.work.writes) == qkv
    assert value(back.work.reads, eager=1) == qkv + out + 5 * scores
    assert value(stash(op).extra) == qkv + 8 * 96 * 8 and value(stash(op).output) == out
    assert value(stash(op).extra, eager=1) - value(stash(op).core, eager=1) == qkv
    assert value(stash(op).core, eager=1) == scores


def test_gradients_of_collectives_are_their_conjugates() -> None:
    copy = trained_layer(sequence_parallel=False)["copy"]
    (summed,) = backward(copy)
    forward = all_reduce("all_reduce", 64)
    assert summed.kind == "all_reduce" and value(summed.work.sent, hidden_size=64) == value(forward.work.sent)
    assert backward(forward) == ()
    assert [op.kind for op in backward(all_gather("logits", 64))] == ["reduce_scatter"]
    assert [op.kind for op in backward(reduce_scatter("sequence_scatter", 64))] == ["all_gather"]
    assert [op.kind for op in backward(all_gather("sequence_gather", 64))] == ["all_gather", "reduce_scatter"]


def test_a_norm_reads_its_input_again() -> None:
    op = norm("norm", 64, residual=True)
    (back,) = backward(op)
    size = 96 / 4 * 64 * 2
    assert (value(back.work.reads), value(back.work.writes), value(stash(op).extra)) == (3 * size, size, size)


def test_every_kind_can_be_trained_or_is_for_serving() -> None:
    from inferometer.training.backward import _BACKWARD

    assert set(KINDS) <= set(_BACKWARD) | SERVING | {"host_copy"}


def trained_layer(**how: bool) -> dict[str, Any]:
    from inferometer.network.families import build
    from inferometer.specs.catalog import model

    block = next(b for b in build(model("gpt2").config).blocks if b.stage == "layer")
    return {op.name: op for op in training_block(block, **how).ops}


def test_the_graph_of_a_step() -> None:
    """Nothing of serving is left, the loss takes the place of the sampler, every product has two gradients."""
    from inferometer.network.families import build
    from inferometer.specs.catalog import model

    passes = stage_passes(build(model("llama-3.1-8b").config), Recipe(recompute="selective"))
    ahead = [op for block in passes.forward for op in block.ops]
    assert not [op for op in ahead if op.kind in SERVING or op.axis == "dcp"]
    assert [op.name for op in ahead][-2:] == ["lm_head", "loss"]
    assert {op.name for block in passes.recompute for op in block.ops} == {"attention"}
    back = [op.name for block in passes.backward for op in block.ops]
    assert back[0] == "loss_backward" and back[-1] == "embed_tokens_wgrad"
    products = [op.name for op in ahead if op.kind == "linear"]
    assert products and all(back.count(f"{p}_{g}") == 1 for p in products for g in ("dgrad", "wgrad"))


def test_a_tensor_that_two_keep_counts_once() -> None:
    inputs = ("norm",)
    ops_ = (norm("norm", 64), linear("a", 64, 8, inputs=inputs), linear("b", 64, 8, inputs=inputs))
    assert value(kept_bytes_of(ops_)) == value(kept_bytes_of(ops_[:2])) == 2 * 96 * 64 * 2


def test_what_megatron_keeps_of_a_layer() -> None:
    """sbh(10 + 24/t + 5as/ht), or sbh·34/t with sequence parallelism and selective recomputation (arXiv 2205.05198)."""
    kwargs: dict[str, Any] = {
        "gpu": "a100-sxm-80gb",
        "tensor_parallel_size": 8,
        "attention": "eager",
        "dropout": True,
        "precision": "fp16",
        "pipeline_parallel_size": 8,
        "interleave": 3,
        "global_batch_size": 64,
    }
    sbh, flying = 2048 * 12288, 96 + 96 * 7 / 24
    plain = train("gpt-3-175b", **kwargs)
    # of the first of 3 virtual stages 16 micro-batches are in flight, each with the mask of its embedding's dropout
    assert plain.memory.activation_bytes == flying * sbh * (10 + 24 / 8 + 5 * 96 * 2048 / 12288 / 8) + 16 * sbh
    thin = train("gpt-3-175b", sequence_parallel=True, recompute="selective", **kwargs)
    assert thin.memory.activation_bytes == flying * sbh * 34 / 8 + 16 * sbh / 8
    assert not plain.feasible and thin.feasible
    exact = 72 * 64 * 96 * 2048 * 12288**2 * (1 + 2048 / 6 / 12288 + 50257 / 12 / 96 / 12288)
    assert plain.model_flops == pytest.approx(exact, rel=1e-12) == thin.model_flops == plain.hardware_flops
    assert thin.hardware_flops - thin.model_flops == pytest.approx(64 * 96 * 4 * 2048**2 * 12288, rel=1e-9)


def test_waves() -> None:
    assert wave_occupancy(2048, 6144, 1, 108) == pytest.approx(384 / 432)
    assert wave_occupancy(64, 64, 1, 108) == 1.0, "split along k instead"
    assert all(0.5 < wave_occupancy(m, n, 1, 132) <= 1 for m in (512, 4096, 10000) for n in (5000, 8192, 13000))


# ------------------------------------------------------------------ properties of a step

LAYOUT = st.fixed_dictionaries(
    {
        "tensor_parallel_size": st.sampled_from([1, 5]),
        "pipeline_parallel_size": st.sampled_from([1, 2, 4]),
        "data_parallel_size": st.sampled_from([1, 2, 8]),
        "sequence_parallel": st.booleans(),
        "recompute": st.sampled_from(RECOMPUTE),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "attention": st.sampled_from(["flash", "eager"]),
        "dropout": st.booleans(),
        "micro_batch_size": st.sampled_from([1, 2]),
        "global_batch_size": st.just(64),
        "seq_len": st.sampled_from([512, 1000]),
    }
)


@settings(max_examples=12, deadline=None)
@given(LAYOUT)
def test_parts_add_up(kwargs: dict[str, Any]) -> None:
    report = train(SMALL, **kwargs)
    b, m = report.breakdown, report.memory
    parts = [getattr(b, word) for word in b.__struct_fields__]
    assert all(part >= 0 for part in parts) and sum(parts) == pytest.approx(report.step_seconds)
    held = m.weights_bytes + m.gradients_bytes + m.optimizer_bytes + m.activation_bytes + m.working_bytes
    assert held + m.buffers_bytes + m.overhead_bytes == pytest.approx(m.total_bytes)
    assert report.step_seconds >= report.roofline_step_seconds > 0
    assert report.hardware_flops >= report.model_flops * (1 - 1e-12)
    assert 0 < report.model_flops_utilization <= report.hardware_flops_utilization * (1 + 1e-12) < 1
    assert report.tokens_per_second * report.step_seconds == pytest.approx(64 * kwargs["seq_len"])
    comm = {
        "tp_comm": kwargs["tensor_parallel_size"],
        "dp_comm": kwargs["data_parallel_size"],
        "pp_bubble": kwargs["pipeline_parallel_size"],
        "pp_comm": kwargs["pipeline_parallel_size"],
    }
    for word, ranks in comm.items():
        assert (getattr(b, word) > 0) == (ranks > 1), word


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(LAYOUT)
def test_more_sharding_and_recomputing_never_takes_more_memory(kwargs: dict[str, Any]) -> None:
    held = [train(SMALL, **{**kwargs, "zero": stage}).memory for stage in range(4)]
    assert all(a.total_bytes >= b.total_bytes for a, b in itertools.pairwise(held))
    reports = [train(SMALL, **{**kwargs, "recompute": mode}) for mode in RECOMPUTE]
    kept_ = [r.memory.activation_bytes + r.memory.working_bytes for r in reports]
    assert all(a >= b for a, b in itertools.pairwise(kept_))
    assert all(a.step_seconds <= b.step_seconds for a, b in itertools.pairwise(reports))
    assert reports[0].breakdown.recompute == 0 < reports[1].breakdown.recompute < reports[2].breakdown.recompute


@settings(max_examples=6, deadline=None)
@given(LAYOUT)
def test_layouts_conserve_work(kwargs: dict[str, Any]) -> None:
    alone = {**kwargs, "tensor_parallel_size": 1, "pipeline_parallel_size": 1, "data_parallel_size": 1}
    spread, whole = train(SMALL, **kwargs), train(SMALL, **alone)
    assert spread.model_flops == pytest.approx(whole.model_flops, rel=1e-12)
    assert spread.hardware_flops == pytest.approx(whole.hardware_flops, rel=1e-12)


@pytest.mark.slow
@settings(max_examples=6, deadline=None)
@given(LAYOUT, st.floats(1.0, 4.0))
def test_more_bandwidth_is_never_slower(kwargs: dict[str, Any], more: float) -> None:
    took = train(SMALL, gpu="h100-sxm", **kwargs).step_seconds
    for figure in ("memory_bandwidth=3.35e12", "links.nvlink.bandwidth=450e9", "links.network.bandwidth=50e9"):
        key, _, base = figure.partition("=")
        assert train(SMALL, gpu=f"h100-sxm:{key}={float(base) * more}", **kwargs).step_seconds <= took * (1 + 1e-12)


def test_backward_is_about_twice_forward() -> None:
    """Exactly twice for products, and so for eager attention; flash computes the scores once more."""
    report = train("llama-3.1-8b", seq_len=4096)
    for name in ("qkv_proj", "o_proj", "gate_up_proj", "down_proj", "lm_head"):
        both = sum(ops(report, "backward", f"{name}_{g}", "flops") for g in ("dgrad", "wgrad"))
        assert both == 2 * ops(report, "forward", name, "flops")
    assert 1.95 < report.breakdown.backward / report.breakdown.forward < 2.3
    assert train("llama-3.1-8b", seq_len=512, attention="eager").hardware_flops == pytest.approx(
        train("llama-3.1-8b", seq_len=512, attention="eager").model_flops
    )


def test_one_gpu_sends_nothing() -> None:
    report = train(SMALL, zero=3)
    assert sum(op.sent for phase in report.phases.values() for op in phase.ops) == 0
    assert "with -dp 1 it has no effect" in " ".join(report.warnings)


def test_what_replicas_send() -> None:
    """Gradients of 4 bytes and weights of 2, 7/8 of them from each rank; ZeRO-3 gathers weights in both passes.

    Gradients are reduced once in a step, or after each of its 4 micro-batches.
    """
    kwargs: dict[str, Any] = {"data_parallel_size": 8, "global_batch_size": 32}
    n = train(SMALL).model.params
    share = 7 / 8 * n

    def sent(zero: int, **more: Any) -> float:
        return sum(op.sent for op in train(SMALL, zero=zero, **kwargs, **more).phases["data_parallel"].ops)

    assert sent(0) == pytest.approx(2 * share * 4)
    assert sent(1) == pytest.approx(share * (4 + 2))
    assert sent(2) == pytest.approx(share * (4 + 2))
    assert sent(3) == pytest.approx(share * (4 + 4 * (2 + 2)))
    assert sent(2, reduce_every_microbatch=True) == pytest.approx(share * (4 * 4 + 2))
    assert sent(3, reduce_every_microbatch=True) == pytest.approx(4 * share * (4 + 2 + 2))


@pytest.mark.parametrize(("optimizer", "each"), [("adamw", 12), ("sgd", 8), ("adafactor", 4)])
def test_bytes_per_parameter(optimizer: str, each: int) -> None:
    report = train(SMALL, optimizer=optimizer, precision="fp16")
    n = report.model.params
    m = report.memory
    assert (m.weights_bytes, m.gradients_bytes, m.optimizer_bytes) == (2 * n, 4 * n, each * n)
    half = train(SMALL, optimizer=optimizer, precision="fp16", grad_dtype="fp16")
    assert half.memory.gradients_bytes == 2 * n
    full = train(SMALL, optimizer=optimizer, precision="fp32")
    assert full.memory.weights_bytes == 4 * n and full.memory.optimizer_bytes == (each - 4) * n, "no master copy"


def test_eight_bit_products_are_faster() -> None:
    slow, fast = (train("llama-3.1-8b", seq_len=4096, global_batch_size=32, precision=p) for p in ("bf16", "fp8"))
    assert 1.2 < slow.step_seconds / fast.step_seconds < 2
    assert "no fp8 units" in " ".join(train("llama-3.1-8b", gpu="a100-sxm-80gb", precision="fp8").warnings)


def test_tokens_per_layer() -> None:
    """Every layer with its own tokens; the same number everywhere is one number."""
    lengths = [1024] * 4 + [512] * 4 + [256] * 4
    report = train("gpt2", seq_len=lengths)
    assert ops(report, "forward", "fc1", "flops") == 2 * 768 * 3072 * sum(lengths)
    assert ops(report, "backward", "fc1_wgrad", "flops") == ops(report, "forward", "fc1", "flops")
    assert train("gpt2", seq_len=[512] * 12).step_seconds == pytest.approx(train("gpt2", seq_len=512).step_seconds)
    longest = train("gpt2", seq_len=1024)
    assert (
        report.step_seconds < longest.step_seconds and report.memory.activation_bytes < longest.memory.activation_bytes
    )
    staged = train("gpt2", seq_len=",".join(map(str, lengths)), pipeline_parallel_size=3, global_batch_size=6)
    assert staged.breakdown.pp_bubble > 0 and staged.model_flops == pytest.approx(6 * report.model_flops)


def test_experts_are_replicated_or_spread() -> None:
    """Spread over all ranks they have no copy to sum gradients with; else every replica has them all."""
    kwargs: dict[str, Any] = {"data_parallel_size": 8, "recompute": "full", "pipeline_parallel_size": 2}
    copied, spread = (train("mixtral-8x7b-v0.1", enable_expert_parallel=ep, **kwargs) for ep in (False, True))
    assert copied.breakdown.ep_comm == 0 < spread.breakdown.ep_comm
    assert spread.memory.weights_bytes < copied.memory.weights_bytes / 5
    assert ops(spread, "data_parallel", "all_reduce_gradients", "sent") < 0.1 * ops(
        copied, "data_parallel", "all_reduce_gradients", "sent"
    )
    assert spread.model_flops == pytest.approx(copied.model_flops, rel=1e-9)


@pytest.mark.parametrize(
    "model",
    [
        "deepseek-v3",
        "qwen3-next-80b-a3b",
        "mamba2-2.7b",
        "dit-xl-2",
        "gpt-oss-20b",
        "nemotron-h-56b",
        "gemma-2-9b",
        "qwen2-vl-7b",
    ],
)
def test_all_kinds_of_models(model: str) -> None:
    report = train(model, gpu="b200", recompute="full", data_parallel_size=8, zero=3, enable_expert_parallel=True)
    assert report.model_flops_utilization > 0.001 and report.memory.total_bytes > 0  # small ones wait for the host
    tokens = report.tokens_per_step
    assert report.model_flops > 5 * tokens * report.model.active_params or model in ("dit-xl-2", "qwen2-vl-7b")
    assert {op.kind for op in report.phases["backward"].ops} & PRODUCTS


# ------------------------------------------------------------------ what does not work


def test_infeasible_says_what_would_fit() -> None:
    report = train("llama-3.1-8b", gpu="a100-sxm-80gb", data_parallel_size=8, seq_len=4096)
    assert not report.feasible and report.reason
    ways = report.reason.partition("fits with ")[2].split(" or ")
    assert {"--zero 2", "-pp 4"} <= set(ways) and report.step_seconds > 0
    for way in ways:
        flag, number = way.split()
        word = {
            "--zero": "zero",
            "--recompute": "recompute",
            "-tp": "tensor_parallel_size",
            "-pp": "pipeline_parallel_size",
            "--micro-batch-size": "micro_batch_size",
        }[flag]
        changed = {word: number if word == "recompute" else int(number)}
        again = train("llama-3.1-8b", gpu="a100-sxm-80gb", **{"data_parallel_size": 8, "seq_len": 4096, **changed})
        assert again.feasible, way


def test_many_changes_together() -> None:
    report = train("llama-3.1-8b", gpu="h100-sxm", micro_batch_size=8, seq_len=32768, data_parallel_size=8)
    assert report.reason and "no single change makes it fit, but --recompute full and" in report.reason


@pytest.mark.parametrize(
    ("kwargs", "reason"),
    [
        ({"tensor_parallel_size": 2}, "15 attention heads are not divisible by tp 2"),
        ({"pipeline_parallel_size": 2, "nodes": 1, "gpus_per_node": 1}, "= 2 GPUs, but 1 × 1 = 1 are available"),
        (
            {"pipeline_parallel_size": 2, "interleave": 20, "global_batch_size": 2},
            "2 stages × 20 virtual ones needs at least 40 layers",
        ),
        ({"pipeline_parallel_size": 4, "interleave": 2, "global_batch_size": 6}, "multiples of pp 4, not 6"),
        ({"interleave": 2}, "needs pipeline stages"),
    ],
)
def test_illegal_layouts(kwargs: dict[str, Any], reason: str) -> None:
    report = train(SMALL, **kwargs)
    assert not report.feasible and report.reason and reason in report.reason


@pytest.mark.parametrize(
    ("kwargs", "kind", "sentence"),
    [
        ({"zero": 4}, BadValue, "zero must be between 0 and 3"),
        ({"recompute": "ful"}, UnknownName, "did you mean full?"),
        ({"optimizer": "adam"}, UnknownName, "adamw"),
        ({"precision": "w4a16"}, UnknownName, "unknown precision"),
        ({"grad_dtype": "fp8"}, UnknownName, "unknown grad_dtype"),
        ({"global_batch_size": 10, "data_parallel_size": 4}, BadValue, "give a multiple of 4"),
        ({"micro_batch_size": 0}, BadValue, "micro_batch_size must be between 1"),
        ({"seq_len": "12,x"}, BadValue, "seq_len must be whole numbers"),
        ({"seq_len": [8, 8]}, BadValue, "seq_len has 2 numbers, but the model has 32 layers"),
        ({"tokens": float("nan")}, BadValue, "tokens must be a positive number"),
        ({"overlap": 1.5}, BadValue, "overlap must be between 0"),
        ({"interleave": 1.5}, BadValue, "interleave must be a whole number"),
        ({"efficiency": 2}, BadValue, "efficiency"),
        ({"gpu": "h10"}, UnknownName, "unknown GPU"),
        ({"engine": "vllm"}, BadValue, "serves models and does not train them: give megatron or roofline"),
        ({"micro_batchsize": 2}, UnknownName, "unknown argument 'micro_batchsize'; did you mean micro_batch_size"),
        ({"batch_size": 2}, UnknownName, "unknown argument 'batch_size'"),
    ],
)
def test_bad_requests(kwargs: dict[str, Any], kind: type[InferometerError], sentence: str) -> None:
    with pytest.raises(kind, match=sentence.replace("?", r"\?")):
        train(SMALL, **kwargs)


# ------------------------------------------------------------------ the command


def test_the_command(run: Run, tmp_path: Path) -> None:
    args = ("train", SMALL, "-dp", "2", "--zero", "1", "--global-batch-size", "8", "--tokens", "1e9")
    data = run(*args, "--json")
    assert (data.code, data.json["schema"]) == (0, "inferometer.train/1") and data.err == ""
    report = train(SMALL, data_parallel_size=2, zero=1, global_batch_size=8, tokens=1e9)
    assert data.json["step_seconds"] == report.step_seconds and report.days and report.cost
    assert report.days == pytest.approx(1e9 / report.tokens_per_second / 86400)
    assert report.cost == pytest.approx(report.days * 24 * 2 * report.device["price_per_hour"])
    rows = list(csv.DictReader(io.StringIO(run(*args, "--csv").out)))
    assert {row["phase"] for row in rows} == {"forward", "backward", "data_parallel", "optimizer"}
    shown = run(*args)
    assert shown.code == 0 and "gate_up_proj_wgrad" in shown.out and "model FLOPs utilization (MFU)" in shown.out
    file = tmp_path / "report.json"
    assert run(*args, "--json", "-o", str(file)).out == "" and file.stat().st_size > 1000


def test_exit_codes(run: Run) -> None:
    assert run("train", SMALL, "-tp", "7", "--json").code == 1
    bad = run("train", SMALL, "--zero", "9")
    assert bad.code == 2 and bad.out == "" and bad.err == "inferometer: --zero must be between 0 and 3, not 9\n"


# ------------------------------------------------------------------ others' figures


def _benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("bench_training", ROOT / "benchmarks" / "training.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench_training"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_published_iterations_and_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Megatron-LM on A100: one curve for all rows; docs/accuracy/training.md says what the code says."""
    bench = _benchmark()
    rows = bench.iterations(bench.published())
    monkeypatch.setattr(bench, "iterations", lambda runs: rows)
    errors = [abs(row.error) for row in rows]
    assert len(errors) == 8 and sum(errors) / 8 < 0.025 and max(errors) < 0.04
    page = (ROOT / "docs" / "accuracy" / "training.md").read_text(encoding="utf-8")
    section = page.partition("<!-- training:begin -->\n")[2].partition("<!-- training:end -->")[0]
    assert section == bench.markdown(), "run benchmarks/training.py and paste"


TRAIN_CASES = [case.id for case in peers.cases("llm_analysis") if case.variant == "training"]


@pytest.mark.parametrize("case_id", TRAIN_CASES)
def test_llm_analysis(case_id: str) -> None:
    """Parameters, weights, gradients, optimizer, FLOPs and activations of its training cases, where it is right."""
    case = peers.case("llm_analysis", case_id)
    i, o, m, mode = case.plan, case.figures, case.model, case.plan.get("recompute")
    tp, pp, micro, zero = i["tensor_parallel_size"], i["pipeline_parallel_size"], i["micro_batch_size"], i["zero"]
    report = train(
        llm_analysis.model(case),
        gpu="a100-sxm-80gb",
        precision="fp16",
        attention="eager",
        zero=zero,
        seq_len=i["seq_len"],
        data_parallel_size=i["data_parallel_size"],
        tensor_parallel_size=tp,
        pipeline_parallel_size=pp,
        micro_batch_size=micro,
        global_batch_size=i["global_batch_size"],
        recompute=mode or "none",
        sequence_parallel=tp > 1,
    )
    assert report.model.params == o["params"]
    layers, hidden = m["num_hidden_layers"], m["hidden_size"]
    passed = i["gradient_accumulation_steps"] * i["data_parallel_size"]
    head = 2 * micro * i["seq_len"] * hidden * m["vocab_size"]  # its full recomputation runs the head again, too
    if mode:
        again = head if mode == "full" else 0
        assert report.hardware_flops / passed + again == pytest.approx(o["micro_batch_flops"], rel=1e-12)
    if pp == 1:
        held = report.memory
        assert held.optimizer_bytes == o["optimizer_bytes"]
        assert held.gradients_bytes == o["gradients_bytes"]
        if zero < 3:
            assert held.weights_bytes == o["weights_bytes"]
    if mode == "full":
        ends = 2 * micro * i["seq_len"] * (hidden * 2 + m["vocab_size"] * 2)  # final norm, head's input, fp32 logits
        theirs = o["norm_activation_bytes"]
        assert report.memory.activation_bytes - ends == theirs == layers * 2 * micro * i["seq_len"] * hidden
    elif mode and tp == 1:  # 18 sbh of the MLP as ours; norms in fp32 there, in 16 bit here
        mlp, norms = o["mlp_activation_bytes"], o["norm_activation_bytes"]
        sbh = micro * i["seq_len"] * hidden
        assert mlp == layers * 18 * sbh and norms == layers * 8 * sbh
        flash = train(
            llm_analysis.model(case),
            gpu="a100-sxm-80gb",
            precision="fp16",
            seq_len=i["seq_len"],
            micro_batch_size=micro,
        )
        ends = 2 * micro * i["seq_len"] * (hidden * 2 + m["vocab_size"] * 2)
        statistics = layers * micro * i["seq_len"] * m["num_attention_heads"] * 8
        assert flash.memory.activation_bytes == layers * (18 + 4 + 10) * sbh + ends + statistics


def test_names_are_the_graphs(run: Run) -> None:
    """The formula that people read has the names of the step and the config."""
    report = train(SMALL)
    op = next(op for op in report.phases["backward"].ops if op.name == "down_proj_wgrad")
    assert "grad_bytes" in op.formula and "intermediate_size" in op.formula and str(s.tokens) in op.formula
