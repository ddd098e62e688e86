"""Defaults of engines by version, device and layout: the values that their own sources give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from inferometer import analyze, search, sweep
from inferometer.base.errors import BadFile, BadValue, UnknownName
from inferometer.costs import host
from inferometer.inference.request import build_request
from inferometer.specs import catalog
from inferometer.specs.engine_rules import RuleFacts, num_sizes, resolve, version_number
from inferometer.specs.structs import Engine, Rule

MODEL = "llama-3.1-8b"


def engine(name: str, gpu: str, **kwargs: Any) -> Engine:
    return build_request(kwargs.pop("model", MODEL), gpu, engine=name, **kwargs).engine


@pytest.mark.parametrize(
    ("version", "gpu", "tokens", "seqs", "share", "graphs"),
    [
        ("vllm", "h100-sxm", 8192, 1024, 0.92, 512),
        ("vllm", "h200", 8192, 1024, 0.92, 512),
        ("vllm", "a100-sxm-80gb", 2048, 256, 0.92, 512),
        ("vllm", "a800-sxm-80gb", 8192, 1024, 0.92, 512),
        ("vllm", "l40s", 2048, 256, 0.92, 512),
        ("vllm", "rtx4090", 2048, 256, 0.92, 512),
        ("vllm", "b200", 16384, 1024, 0.92, 1024),
        ("vllm", "mi300x", 16384, 1024, 0.92, 512),
        ("vllm", "rtx-pro-6000", 8192, 1024, 0.92, 512),
        ("vllm", "tpu-v6e", 1024, 256, 0.92, 512),
        ("vllm", "tpu-v5p", 256, 256, 0.92, 256),
        ("vllm", "epyc-9654", 2048, 128, 0.92, 256),
        ("vllm@0.27", "b200", 8192, 1024, 0.92, 512),
        ("vllm@0.27.1", "mi300x", 8192, 1024, 0.92, 512),
        ("vllm@0.20", "h100-sxm", 8192, 1024, 0.92, 512),
        ("vllm@0.19.0", "h100-sxm", 8192, 1024, 0.9, 512),
        ("vllm@0.15.1", "a100-pcie-40gb", 2048, 256, 0.9, 512),
    ],
)
def test_vllm(version: str, gpu: str, tokens: int, seqs: int, share: float, graphs: int) -> None:
    e = engine(version, gpu)
    assert (e.max_num_batched_tokens, e.max_num_seqs, e.memory_utilization, e.graph_tokens) == (
        tokens,
        seqs,
        share,
        graphs,
    )


@pytest.mark.parametrize(
    ("gpu", "tp", "chunk", "graphs", "share"),
    [
        ("t4", 1, 2048, 8, 0.735),
        ("rtx4090", 1, 2048, 24, 0.83),
        ("rtx4090", 4, 2048, 80, 0.808),
        ("l40s", 1, 4096, 32, 0.843),
        ("l40s", 8, 4096, 160, 0.818),
        ("h100-sxm", 1, 8192, 256, 0.83),
        ("h100-sxm", 8, 8192, 512, 0.81),
        ("h200", 1, 8192, 256, 0.903),
        ("b200", 1, 16384, 512, 0.854),
        ("mi300x", 1, 16384, 512, 0.867),
    ],
)
def test_sglang(gpu: str, tp: int, chunk: int, graphs: int, share: float) -> None:
    e = engine("sglang", gpu, tensor_parallel_size=tp)
    assert (e.max_num_batched_tokens, e.graph_tokens, e.max_num_seqs) == (chunk, graphs, 2048)
    assert e.memory_utilization == pytest.approx(share, abs=0.01), "memory by CUDA is a little less than by the driver"
    assert e.prefill_graph_tokens == (chunk if gpu != "mi300x" else 0), "no graphs of prompts under ROCm"


def test_prompts_run_in_graphs_since_sglang_0_5_10() -> None:
    before, since = engine("sglang@0.5.9", "h200"), engine("sglang@0.5.10", "h200")
    assert before.prefill_graph_tokens == 0 and since.prefill_graph_tokens == 8192
    assert host.without_graphs(before, 3000, True) and not host.without_graphs(since, 3000, True)
    assert host.without_graphs(since, 300, False), "decode graphs end at 256 sequences"
    assert host.padded_tokens(since, 3000, 3000) == 3072 and host.padded_tokens(since, 13) == 16
    assert engine("sglang@0.5.14", "h200", pipeline_parallel_size=2).prefill_graph_tokens == 0
    assert engine("sglang", "h200", pipeline_parallel_size=2).prefill_graph_tokens == 8192


def test_pages_follow_the_attention_back_end() -> None:
    deepseek = {"model": "deepseek-v3", "tensor_parallel_size": 8}
    assert [engine("sglang", gpu).block_size for gpu in ("h200", "b200", "rtx5090")] == [1, 64, 1]
    assert (
        engine("sglang", "h200", **deepseek).block_size == 1 and engine("sglang", "b200", **deepseek).block_size == 64
    )
    assert engine("sglang", "b200", **deepseek).prefill_graph_tokens == 0, "trtllm_mla"
    assert (
        engine("vllm", "h200", **deepseek).block_size == 16 and engine("vllm@0.15", "h200", **deepseek).block_size == 64
    )
    assert engine("vllm", "b200", **deepseek).block_size == 32
    sparse = {"model": "deepseek-v3.2", "tensor_parallel_size": 8}
    assert engine("vllm", "h200", **sparse).block_size == 64


def test_trtllm_runs_batches_between_its_graphs_without_one() -> None:
    e = engine("trtllm", "h200")
    assert (e.max_num_batched_tokens, e.max_num_seqs, e.block_size, e.graph_tokens) == (8192, 2048, 32, 128)
    assert [n for n in (1, 32, 33, 48, 64, 65, 128, 129) if host.without_graphs(e, n, False)] == [33, 48, 65, 129]
    assert host.without_graphs(e, 8, True), "no graphs of prompts"
    assert host.padded_tokens(e, 48) == 48
    padded = engine("trtllm", "h200", max_cudagraph_capture_size=256)
    assert not host.without_graphs(padded, 48, False) and host.padded_tokens(padded, 49) == 56
    assert host.padded_tokens(padded, 130) == 192 and host.without_graphs(padded, 8, True)
    drafted = engine("trtllm", "h200", speculative_config='{"method": "ngram", "num_speculative_tokens": 3}')
    assert drafted.graph_tokens == 512 and not host.without_graphs(drafted, 31 * 4, False)
    assert host.without_graphs(drafted, 33 * 4, False)


def test_asynchronous_scheduling_depends_on_version_and_speculation() -> None:
    draft = '{"model": "llama-3.2-1b", "num_speculative_tokens": 3}'
    assert not engine("vllm@0.13", "h200").async_scheduling and engine("vllm@0.14", "h200").async_scheduling
    assert not engine("vllm", "h200", speculative_config='{"method": "ngram"}').async_scheduling
    assert engine("vllm", "h200", speculative_config=draft).async_scheduling
    assert not engine("vllm@0.27", "h200", speculative_config=draft).async_scheduling


def test_graphs_of_vllm_end_at_the_least_of_three() -> None:
    e = engine("vllm", "h200", max_num_seqs=64)
    assert e.graph_tokens == 128 and host.padded_tokens(e, 121) == 128 and host.padded_tokens(e, 129) == 129
    draft = '{"method": "ngram", "num_speculative_tokens": 3}'
    assert engine("vllm", "h200", max_num_seqs=64, speculative_config=draft).graph_tokens == 512
    few = engine("vllm", "h200", max_num_batched_tokens=100)
    assert few.graph_tokens == 100 and few.max_num_seqs == 100


# ------------------------------------------------------------------ memory


def test_a_70b_in_fp8_on_one_h100_under_three_engines() -> None:
    """With the driver's 81,559 MiB: vLLM has room for 11,360 tokens, SGLang refuses, TensorRT-LLM has some 54,000."""
    kwargs = {"gpu": f"h100-sxm:memory={81559 * 2**20}", "quantization": "fp8"}
    vllm, sglang, trtllm = (analyze("llama-3.1-70b", engine=name, **kwargs) for name in ("vllm", "sglang", "trtllm"))
    assert vllm.memory.max_total_tokens == 11360
    assert not sglang.feasible and sglang.memory.max_total_tokens == 0 and "83.0%" in (sglang.reason or "")
    assert trtllm.memory.max_total_tokens == pytest.approx(54_000, rel=0.01)
    before = analyze("llama-3.1-70b", engine="vllm@0.19", **kwargs)
    assert before.memory.max_total_tokens == 5648


def test_static_and_free_shares() -> None:
    static = analyze(MODEL, gpu="h200", engine="sglang", gpu_memory_utilization=0.5).memory
    room = 0.5 * static.capacity_bytes - static.weights_bytes
    assert static.max_total_tokens == pytest.approx(room / static.kv_bytes_per_token, rel=1e-4), (
        "no activations taken off"
    )
    free = analyze(MODEL, gpu="h200", engine="trtllm", gpu_memory_utilization=0.5).memory
    rest = free.capacity_bytes - free.weights_bytes - free.activation_bytes - free.overhead_bytes
    assert free.max_total_tokens == pytest.approx(0.5 * rest / free.kv_bytes_per_token, rel=1e-3)
    for held in (static, free):
        assert held.max_batch_size * held.kv_bytes_per_token * 1152 <= held.usable_bytes - held.weights_bytes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sglang", "trtllm"])
def test_a_search_knows_the_room_that_an_analysis_has(name: str) -> None:
    one: dict[str, Any] = {"gpu": "h100-sxm", "engine": name, "quantization": "fp8", "input_len": 256, "output_len": 32}
    result = search("llama-3.1-70b", num_gpus=2, goodput="tpot:100", finalists=1, **one)
    alone = analyze("llama-3.1-70b", **one)
    one_gpu = [plan for plan in result.plans if plan.pools[0].gpus == 1]
    assert result.feasible and (alone.feasible or not one_gpu)


# ------------------------------------------------------------------ what is given, and what is said


def test_what_is_given_stands_before_every_rule() -> None:
    given = {"max_num_batched_tokens": 4096, "max_num_seqs": 77, "gpu_memory_utilization": 0.7, "block_size": 128}
    for name in ("vllm", "sglang", "trtllm"):
        plan = build_request(MODEL, "b200", engine=name, **given).plan
        assert {key: getattr(plan, key) for key in given} == given
        assert not {d.name for d in engine(name, "b200", **given).defaults} & set(given)
    chunk = engine("sglang", "h100-sxm", max_num_batched_tokens=16384)
    assert chunk.memory_utilization == pytest.approx(0.67, abs=0.01), "the formula sees the chunk that was given"
    assert engine("sglang", "h200", max_prefill_cudagraph_capture_size=0).prefill_graph_tokens == 0


def test_the_report_says_what_was_filled_in_and_why() -> None:
    said = analyze(MODEL, gpu="a100-sxm-80gb").to_dict()["engine"]
    assert said["version"] == catalog.engine("vllm").versions[-1]
    defaults = {d["name"]: d for d in said["defaults"]}
    assert defaults["max_num_batched_tokens"]["value"] == 2048 and "arg_utils.py" in defaults["max_num_seqs"]["source"]
    h100 = {d["name"]: d for d in analyze(MODEL, gpu="h100-sxm").to_dict()["engine"]["defaults"]}
    assert h100["max_num_batched_tokens"]["why"] == "70 GiB or more, and no A100"
    assert all(d["source"] for d in h100.values() if d["name"] != "scheduler")
    assert analyze(MODEL, engine="roofline").to_dict()["engine"]["defaults"] == []


def test_a_sweep_tells_versions_apart() -> None:
    table = sweep(MODEL, gpu="b200", engine=["vllm", "vllm@0.15"], batch_size=[1])
    assert sorted(row["engine"] for row in table.rows()) == ["vllm", "vllm@0.15"]


@pytest.mark.parametrize(
    ("name", "error", "sentence"),
    [
        ("vllm@0.7", BadValue, "known for 0.12 to 0.28 only"),
        ("vllm@0.1", BadValue, "0.12 to 0.28"),
        ("trtllm@0.9", BadValue, "known for 1.3 only"),
        ("hf@5", BadValue, "no versions to choose from"),
        ("vlm@0.15", UnknownName, "did you mean vllm"),
        ("none.toml@0.15", BadFile, "no engine file"),
    ],
)
def test_versions_that_were_not_checked_are_refused(name: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        engine(name, "h200")


def test_files_inherit_rules_but_their_own_figures_stand(tmp_path: Path) -> None:
    own = tmp_path / "own.toml"
    own.write_text('like = "vllm"\nmax_num_seqs = 99\n', encoding="utf-8")
    e = engine(str(own), "h200")
    assert (e.max_num_seqs, e.max_num_batched_tokens, e.version) == (99, 8192, "0.28")
    assert engine(f"{own}@0.15", "h200").memory_utilization == 0.9
    own.write_text('like = "vllm"\n[[when]]\nset = {max_num_seqs = "2 * tp"}\n', encoding="utf-8")
    assert engine(str(own), "h200", tensor_parallel_size=4).max_num_seqs == 8
    for rule, sentence in (
        ("set = {max_sequences = 1}", "which is not an engine setting"),
        ('set = {max_num_seqs = "2 * tensors"}', "is not a formula"),
        ('set = {max_num_seqs = "2 *"}', "is not a formula"),
        ('set = {max_num_seqs = "__import__(1)"}', "is not a formula"),
        ("set = {max_num_seqs = 1}\nmemory = 3", r"`when\[\d+\]\.memory` is not known; did you mean memory_below"),
    ):
        own.write_text(f'like = "vllm"\n[[when]]\n{rule}\n', encoding="utf-8")
        with pytest.raises(BadFile, match=sentence):
            catalog.engine(str(own))


def test_the_last_rule_that_holds_wins() -> None:
    rules = (
        Rule(set={"max_num_seqs": 1}),
        Rule(set={"max_num_seqs": "max_num_seqs + 1"}, version_at_least="0.5.10"),
        Rule(set={"max_num_seqs": 9}, vendors=("AMD",)),
    )
    e = Engine(when=rules)
    assert resolve(e, RuleFacts(version=version_number("0.5.9.post1"))).max_num_seqs == 1
    assert resolve(e, RuleFacts(version=version_number("0.5.10"))).max_num_seqs == 2
    assert resolve(e, RuleFacts(version=(0, 5, 10), vendor="AMD")).max_num_seqs == 9
    assert resolve(e, RuleFacts(vendor="AMD"), {"max_num_seqs": 5}).max_num_seqs == 5


def test_sizes_are_counted() -> None:
    sizes = catalog.engine("sglang").prefill_graph_sizes
    assert sizes is not None and [num_sizes(sizes, n) for n in (0, 32, 256, 4096, 8192)] == [0, 8, 22, 50, 58]


def test_every_rule_has_a_source() -> None:
    for name in catalog.names("engines"):
        for rule in catalog.engine(name).when:
            opened = (" v0." in rule.source or "commit" in rule.source) and ".py:" in rule.source
            assert opened or rule.source.startswith("assumed"), rule


def test_a_reserve_larger_than_the_device_leaves_nothing() -> None:
    """SGLang's graphs of 33 data-parallel ranks reserve more than an H100 has: the server does not start."""
    report = analyze("qwen2.5-0.5b", gpu="h100-sxm", engine="sglang", data_parallel_size=33)
    assert not report.feasible and report.plan["gpu_memory_utilization"] == 0.001
    assert report.memory.usable_bytes > 0
