"""Number formats: what weights are stored in, and what an engine multiplies them in on a device."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from inferometer import analyze
from inferometer.base.errors import BadValue, UnknownName
from inferometer.costs.binding import BoundPlan
from inferometer.costs.precision import computed_as
from inferometer.inference.request import build_request
from inferometer.specs import catalog

GPT_OSS, FP4_GPUS = "gpt-oss-120b", ("b200", "rtx-pro-6000", "mi355x")


def bound(model: str, gpu: str, engine: str) -> BoundPlan:
    return build_request(model, gpu, engine=engine).bind()


@pytest.mark.parametrize("gpu", ["a100-sxm-80gb", "h200", *FP4_GPUS])
def test_vllm_computes_gpt_oss_in_16_bits(gpu: str) -> None:
    """FLASHINFER_TRTLLM_MXFP4_BF16, Triton, Marlin or AITER_MXFP4_BF16: 16-bit activations everywhere."""
    env = bound(GPT_OSS, gpu, "vllm").env
    assert env["experts_peak_flops"] == catalog.hardware(gpu).flops["bf16"]
    assert env["experts_input_bytes"] == 2
    assert env["experts_weight_bytes"] == 4.25 / 8  # 4 bits and a scale of 8 bits per 32


@pytest.mark.parametrize(
    "model,gpu,engine,runs",
    [
        (GPT_OSS, "b200", "trtllm", "fp8"),  # W4A8_MXFP4_MXFP8 from SM100 on
        (GPT_OSS, "h200", "trtllm", "bf16"),  # W4A16_MXFP4: Hopper has fp8 units, but none that take fp4 beside it
        (GPT_OSS, "b200", "sglang", "fp8"),  # flashinfer_mxfp4 with its default precision
        (GPT_OSS, "mi355x", "sglang", "bf16"),
        ("deepseek-v4-flash", "b200", "vllm", "fp8"),  # FLASHINFER_TRTLLM_MXFP4_MXFP8
        ("deepseek-v4-flash", "h200", "vllm", "bf16"),  # Marlin
        ("deepseek-v4-flash", "mi355x", "vllm", "bf16"),  # AITER_MXFP4_BF16
        (GPT_OSS, "mi355x", "roofline", "fp8"),
        (GPT_OSS, "b200", "hf", "bf16"),
    ],
)
def test_mxfp4_is_multiplied_in_what_the_engine_has_kernels_for(model: str, gpu: str, engine: str, runs: str) -> None:
    env = bound(model, gpu, engine).env
    assert env["experts_peak_flops"] == catalog.hardware(gpu).flops[runs]
    assert env["experts_input_bytes"] == (8.25 / 8 if runs == "fp8" else 2)


def test_a_report_says_what_weights_are_multiplied_as() -> None:
    report = analyze(GPT_OSS, "b200", engine="trtllm")
    assert (report.model.quantization["experts"], report.model.computed_as["experts"]) == ("mxfp4", "mxfp4-mxfp8")
    assert analyze(GPT_OSS, "h200", engine="trtllm").model.computed_as["experts"] == "mxfp4"
    assert analyze("llama-3.1-8b", "a100-sxm-80gb", quantization="fp8").model.computed_as["mlp"] == "w8a16"


@pytest.mark.parametrize(
    "model,gpu,backend,runs",
    [
        (GPT_OSS, "h200", None, "mxfp4"),  # Triton's kernel
        (GPT_OSS, "h200", "marlin", "mxfp4-marlin"),
        (GPT_OSS, "h200", "auto", "mxfp4"),
        (GPT_OSS, "l40s", None, "mxfp4-marlin"),  # nothing else runs there
        ("deepseek-v4-flash", "h200", None, "mxfp4-marlin"),
        ("deepseek-v4-flash", "b200", None, "mxfp4-mxfp8"),
        ("deepseek-v4-flash", "b200", "marlin", "mxfp4-marlin"),
    ],
)
def test_experts_are_given_to_kernels_that_were_chosen(model: str, gpu: str, backend: str | None, runs: str) -> None:
    bound_plan = build_request(model, gpu, engine="vllm", moe_backend=backend, tensor_parallel_size=8).bind()
    computed = computed_as(bound_plan.engine, bound_plan.model, bound_plan.device, {"experts": "mxfp4"})
    assert computed == {"experts": runs}


def test_marlin_is_slower_with_long_prompts_alone() -> None:
    """It widens weights as it goes: what counts is how fast weights come, until there are many rows for each expert."""
    sizes = {"batch_size": 1, "input_len": 8000, "output_len": 64}
    own, marlin = (analyze(GPT_OSS, "h200", moe_backend=name, **sizes) for name in ("auto", "marlin"))
    seconds = [
        sum(op.seconds for op in report.phases["prefill"].ops if op.name == "experts") for report in (own, marlin)
    ]
    assert 1.5 < seconds[1] / seconds[0] < 3
    assert 0.85 * own.metrics.tpot_ms < marlin.metrics.tpot_ms < own.metrics.tpot_ms
    assert marlin.memory.weights_bytes > own.memory.weights_bytes, "Marlin pads 2,880 to 3,072"


def test_what_has_no_such_kernels_is_said() -> None:
    report = analyze("qwen3-30b-a3b", "h200", moe_backend="marlin")
    assert any("marlin is not modelled for experts in bf16" in warning for warning in report.warnings)
    assert report.metrics == analyze("qwen3-30b-a3b", "h200").metrics
    assert not analyze("llama-3.1-8b", "h200", moe_backend="marlin").warnings, "it has no experts"
    assert not analyze(GPT_OSS, "l40s", moe_backend="marlin", tensor_parallel_size=2).warnings, "as it does by itself"
    assert any("not modelled" in warning for warning in analyze(GPT_OSS, "mi300x", moe_backend="marlin").warnings)
    with pytest.raises(UnknownName, match="did you mean marlin"):
        analyze(GPT_OSS, "h200", moe_backend="martin")
    with pytest.raises(BadValue, match="SGLang has no"):
        analyze(GPT_OSS, "h200", engine="sglang", moe_backend="marlin")


@pytest.mark.parametrize("version,format_name", [("0.19", "fp32-ieee"), ("0.23", "bf16")])
def test_vllm_multiplied_the_router_of_minimax_in_fp32(version: str, format_name: str) -> None:
    report = analyze("minimax-m2.5", "b200", engine=f"vllm@{version}", tensor_parallel_size=4)
    assert report.model.computed_as["router"] == format_name
    assert report.model.computed_as["attn"] == "fp8-block"  # all other weights are as they were
    assert analyze("qwen3-30b-a3b", "b200", engine=f"vllm@{version}").model.computed_as["router"] == "bf16"


@pytest.mark.parametrize("model", ["ernie-4.5-21b-a3b", "glm-4.5-air"])
def test_vllm_multiplies_some_routers_in_fp32(model: str) -> None:
    report = analyze(model, "h200", tensor_parallel_size=2)
    assert report.model.computed_as["router"] == "fp32-ieee"
    assert analyze(model, "h200", engine="sglang", tensor_parallel_size=2).model.computed_as["router"] == "bf16"


@pytest.mark.parametrize("tokens,microseconds", [(16, 22.3), (64, 63.3), (256, 77.8), (1024, 111)])
def test_a_router_in_fp32_takes_what_was_timed(tokens: int, microseconds: float, tmp_path: Path) -> None:
    """torch on a GB200, 6144 inputs and 256 outputs (vllm-project/vllm pull request 47973), and the pass before it."""
    entry = catalog.catalog_entry("minimax-m2.5")
    assert entry is not None
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**entry.config, "hidden_size": 6144}), encoding="utf-8")
    report = analyze(str(path), "b200", engine="vllm@0.19", batch_size=tokens, input_len=64, output_len=2)
    router = next(op for op in report.phases["decode"].ops if op.name == "router")
    widening = 1.6 + 6 * tokens * 6144 / (7.7e12 * 0.75) * 1e6
    assert router.seconds / router.count * 1e6 == pytest.approx(microseconds + widening, rel=0.03)


def test_no_gpu_without_a_table_runs_gpt_oss_several_times_faster_than_a_b200() -> None:
    """A MI355X has 2.2% more FLOP/s in bf16 than a B200: assumed shares of peak may differ by 2.5, not by 5."""
    seconds = {}
    for gpu in ("b200", "mi355x"):
        report = analyze(GPT_OSS, gpu, batch_size=8, input_len=8192)
        seconds[gpu] = sum(op.seconds for op in report.phases["prefill"].ops if op.name == "experts")
    assert seconds["b200"] / seconds["mi355x"] < 2.5


def test_every_precision_has_kernels_where_a_device_lacks_its_units() -> None:
    """A precision that a device cannot compute in must name one that any device can run; fp32 needs no such units."""
    precisions = catalog.precisions()
    for name, entry in precisions.items():
        if entry.compute and name not in (*catalog.UNQUANTIZED, "fp32-ieee"):
            assert not precisions[entry.without_units].compute, name
            assert precisions[entry.without_units].bits == entry.bits, name


def test_rules_of_engines_name_precisions_of_one_size() -> None:
    """Weights keep their bytes whatever they are multiplied in, but for a router, which vLLM also stores in fp32."""
    for name in catalog.names("engines"):
        for rule in catalog.engine(name).compute:
            stored, runs = catalog.precision(rule.precision), catalog.precision(rule.runs_as)
            assert stored.bytes == runs.bytes or rule.roles == ("router",), (name, rule)
            assert rule.source, (name, rule)


def test_a_b200_keeps_the_seconds_of_its_table() -> None:
    """The surface was fitted anew to the same rows when its base went from the fp4 to the bf16 rate.

    Experts of a decode step before: 4.303 ms with 8 sequences of 8,192 tokens; of the prefill 0.882 s.
    """
    report = analyze(GPT_OSS, "b200", batch_size=8, input_len=8192, output_len=64)
    seconds = [sum(op.seconds for op in phase.ops if op.name == "experts") for phase in report.phases.values()]
    assert seconds == pytest.approx([0.882, 4.303e-3], rel=0.05)


@pytest.mark.parametrize(
    "model,gpu,engine,per_token",
    [
        # 61 layers of 512 bytes in fp8, 4 fp32 scales, 64 elements in 16 bit, and the indexer's 128 + 4
        ("deepseek-v3.2", "h200", "vllm", 61 * (512 + 16 + 128 + 132)),
        ("deepseek-v3.2", "rtx-pro-6000", "vllm", 61 * (656 + 132)),
        ("deepseek-v3.2", "h200", "sglang", 61 * (656 + 132)),
        ("deepseek-v3.2", "b200", "vllm", 61 * (576 + 132)),  # FlashInfer on SM100: one scale for all
        ("deepseek-v3.2", "b200", "sglang", 61 * (576 + 132)),
        ("deepseek-v3.2", "h200", "trtllm", 61 * (576 + 132)),
        ("deepseek-v3", "h200", "vllm", 61 * 576),  # plain latents are 576 bytes everywhere
    ],
)
def test_latents_in_fp8_are_kept_in_the_engines_layout(model: str, gpu: str, engine: str, per_token: int) -> None:
    report = analyze(model, gpu, engine=engine, tensor_parallel_size=8, kv_cache_dtype="fp8")
    assert report.memory.kv_bytes_per_token == per_token


def test_packed_latents_are_read_as_they_are_kept() -> None:
    """A decode step reads at most 2,048 chosen latents of 656 bytes, and the index of 132 bytes of every position."""
    report = analyze(
        "deepseek-v3.2", "h200", tensor_parallel_size=8, kv_cache_dtype="fp8", input_len=8192, output_len=2
    )
    reads = {op.name: op.load_kv_cache / op.count for op in report.phases["decode"].ops if op.load_kv_cache}
    assert reads["attention"] == pytest.approx(2048 * 656)
    assert reads["index_scores"] == pytest.approx(8193 * 132, rel=1e-3)


def test_latents_in_16_bits_are_not_packed() -> None:
    report = analyze("deepseek-v3.2", "h200", tensor_parallel_size=8)
    assert report.memory.kv_bytes_per_token == 61 * (576 * 2 + 132)


def test_sglang_keeps_sparse_latents_in_fp8_on_blackwell_unless_told_otherwise() -> None:
    expected = {("b200", "sglang"): "fp8", ("h200", "sglang"): "bf16", ("b200", "vllm"): "bf16"}
    for (gpu, engine), dtype in expected.items():
        assert build_request("deepseek-v3.2", gpu, engine=engine, tensor_parallel_size=8).plan.kv_cache_dtype == dtype
    told = build_request("deepseek-v3.2", "b200", engine="sglang", tensor_parallel_size=8, kv_cache_dtype="bf16")
    assert told.plan.kv_cache_dtype == "bf16"
    assert build_request("deepseek-v3", "b200", engine="sglang", tensor_parallel_size=8).plan.kv_cache_dtype == "bf16"


def test_biases_are_not_quantised() -> None:
    """gpt-oss-120b's checkpoint has 65.249 GB: 36 layers of 128 experts have 3 x 2,880 biases each, in 16 bits."""
    assert analyze(GPT_OSS, "h200", engine="roofline").memory.weights_bytes == pytest.approx(65.249e9, rel=1e-5)
    plain, quantised = (
        analyze("qwen2.5-7b", "h200", engine="roofline", quantization=q).memory.weights_bytes for q in ("bf16", "fp8")
    )
    products = 28 * (3584 * (3584 + 2 * 512) + 3584 * 3584 + 3 * 3584 * 18944)  # attention and MLP of 28 layers
    assert plain - quantised == products  # a byte less for each element of a matrix, none for biases


@pytest.mark.parametrize("engine,dtype", [("sglang", "int8"), ("sglang", "int4"), ("trtllm", "int8")])
def test_a_cache_that_an_engine_does_not_have_is_refused(engine: str, dtype: str) -> None:
    with pytest.raises(
        BadValue, match=f"has no KV cache in {dtype}: .*kv_cache_dtype.* must be one of auto, bf16, .*fp8"
    ):
        analyze("llama-3.1-8b", "h200", engine=engine, kv_cache_dtype=dtype)


def test_vllm_has_an_int8_cache_since_0_20_and_int4_since_0_25() -> None:
    with pytest.raises(BadValue, match="vLLM has no KV cache in int8"):
        analyze("llama-3.1-8b", "h200", engine="vllm@0.19", kv_cache_dtype="int8")
    assert analyze("llama-3.1-8b", "h200", engine="vllm@0.20", kv_cache_dtype="int8").feasible
    with pytest.raises(BadValue, match="vLLM has no KV cache in int4"):
        analyze("llama-3.1-8b", "h200", engine="vllm@0.24", kv_cache_dtype="int4")


@pytest.mark.parametrize("engine,dtype", [("vllm", "int8"), ("roofline", "int4"), ("hf", "int8"), ("sglang", "fp8")])
def test_a_cache_that_an_engine_has_is_kept(engine: str, dtype: str) -> None:
    report = analyze("llama-3.1-8b", "h200", engine=engine, kv_cache_dtype=dtype)
    assert report.memory.kv_bytes_per_token == 32 * 8 * 2 * 128 * {"int8": 1, "int4": 0.5, "fp8": 1}[dtype]


def test_states_in_a_chosen_format() -> None:
    """Half the bytes of the states in every step, and more sequences whose states fit; prompts hardly notice."""
    request = {
        word: build_request("qwen3.5-27b", "h200", batch_size=64, mamba_ssm_cache_dtype=word)
        for word in ("auto", "fp32", "bf16", "bfloat16")
    }
    report = {word: analyze("qwen3.5-27b", "h200", batch_size=64, mamba_ssm_cache_dtype=word) for word in request}
    assert [request[word].model.state_bits for word in request] == [32, 32, 16, 16]
    assert report["auto"].metrics.tpot_ms == report["fp32"].metrics.tpot_ms > 1.05 * report["bf16"].metrics.tpot_ms
    assert report["auto"].metrics.ttft_ms == pytest.approx(report["bf16"].metrics.ttft_ms, rel=0.02)
    assert (report["bf16"].memory.max_batch_size or 0) > 1.3 * (report["auto"].memory.max_batch_size or 0) > 0
    assert analyze("llama-3.1-8b", "h200", mamba_ssm_cache_dtype="bf16").warnings == [
        "--mamba-ssm-cache-dtype changes nothing: llama-3.1-8b has no recurrent layers"
    ]
    with pytest.raises(UnknownName, match="did you mean fp16 or fp32"):
        analyze("qwen3.5-27b", "h200", mamba_ssm_cache_dtype="fp8")
