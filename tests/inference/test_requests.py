"""What a request may say: types, limits, dtypes; a wrong one is one sentence that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from inferometer import BadValue, InferometerError, Report, analyze, train

Reports = Callable[..., Report]
MODEL = "llama-3.1-8b"


def test_images_count_against_the_limit(report: Reports) -> None:
    assert "2,448 tokens" in " ".join(report("qwen2.5-vl-7b", images="1x1008x1008", max_model_len=2000).warnings)


def test_diffusion_models_still_run() -> None:
    assert analyze("DiT-XL/2").feasible and analyze("DiT-XL/2", phase="prefill").metrics.tpot_ms is None
    assert train("DiT-XL/2", gpu="h100-sxm").step_seconds > 0


def test_sequences_at_once_count_by_replica() -> None:
    assert analyze(MODEL, batch_size=8, data_parallel_size=2, max_num_seqs=4).feasible
    with pytest.raises(BadValue, match="max_num_seqs"):
        analyze(MODEL, batch_size=9, data_parallel_size=2, max_num_seqs=4)


def test_the_limit_is_named_as_it_was_given(report: Reports) -> None:
    assert "1,152 tokens are more than --max-model-len 100" in report(MODEL, max_model_len=100).warnings


@pytest.mark.parametrize("engine", ["vllm", "sglang", "hf", "roofline"])
@pytest.mark.parametrize("model", ["mamba-2.8b", "mamba2-2.7b"])
def test_a_checkpoint_in_fp32(report: Reports, model: str, engine: str) -> None:
    loaded = report(model, engine=engine)
    wide = engine in ("hf", "roofline")
    assert loaded.plan["dtype"] == ("fp32" if wide else "bf16")
    assert any("checkpoint is fp32" in w for w in loaded.warnings) != wide
    kept = report(model, engine=engine, dtype="fp32")
    assert kept.plan["dtype"] == "fp32" and not any("checkpoint is fp32" in w for w in kept.warnings)
    assert kept.memory.weights_bytes == pytest.approx(loaded.memory.weights_bytes * (1 if wide else 2), rel=0.02)


def test_a_device_without_bf16_takes_fp16(report: Reports) -> None:
    assert report("mamba-2.8b", gpu="t4").plan["dtype"] == "fp16"


def test_none_is_the_same_as_not_given() -> None:
    none = dict.fromkeys(("overlap", "cpu_offload_gb", "routing_skew", "dtype", "batch_size", "tensor_parallel_size"))
    assert analyze(MODEL, **none).to_dict() == analyze(MODEL).to_dict()


@pytest.mark.parametrize(
    "kwargs",
    [
        {"overlap": "x"},
        {"cpu_offload_gb": "x"},
        {"turns": [5]},
        {"turns": [(1, 2, 3)]},
        {"turns": 5},
        {"turns": []},
        {"engine": 5},
        {"quantization": ["fp8"]},
        {"input_len": {}},
        {"output_len": 10**5000},
        {"lora_rank": 8, "lora_targets": 5},
        {"lora_rank": 8, "lora_targets": []},
        {"lora_rank": 8, "lora_adapters": "x"},
        {"enable_expert_parallel": "x"},
        {"fusion": "x"},
        {"images": 5},
        {"gpu": 5},
        {"kv_cache_dtype": ["fp8"]},
        {"speculative_config": 5},
        {"speculative_config": "[" * 100_000},
    ],
)
def test_the_python_face_gives_sentences(kwargs: dict[str, Any]) -> None:
    with pytest.raises(InferometerError) as error:
        analyze(MODEL, **kwargs)
    assert "\n" not in str(error.value) and len(str(error.value)) < 500


@pytest.mark.parametrize("images", [5, (1, 2), "1x2", ("a", 1, 2)])
def test_images_by_hand(images: Any) -> None:
    with pytest.raises(BadValue, match="images"):
        analyze("qwen2.5-vl-7b", images=images)


@pytest.mark.parametrize(
    "kwargs",
    [
        {"batch_size": "8"},
        {"batch_size": 1.5},
        {"batch_size": True},
        {"batch_size": float("nan")},
        {"input_len": float("inf")},
        {"input_len": []},
        {"routing_skew": "x"},
        {"gpu_memory_utilization": "0.9"},
        {"gpu_memory_utilization": 0},
        {"gpu_memory_utilization": 1e-320},
        {"gpu_memory_utilization": 1.5},
        {"efficiency": {"flops": "x"}},
        {"efficiency": {"zzz": 0.5}},
        {"efficiency": True},
        {"turns": [(1, 0)]},
        {"phase": "zzz"},
        {"quantization": 8},
        {"gpu": None},
        {"output_len": None, "beam_width": 0},
    ],
)
def test_the_python_face_is_as_strict(kwargs: dict[str, Any]) -> None:
    with pytest.raises(InferometerError) as error:
        analyze(MODEL, **kwargs)
    assert "\n" not in str(error.value)


def test_numpy_numbers_are_numbers() -> None:
    assert analyze(MODEL, batch_size=np.int64(2), input_len=np.int32(64)).workload["input_len"] == 64
    with pytest.raises(BadValue, match="batch_size"):
        analyze(MODEL, batch_size=np.float64(1.5))
