"""Every format's tables become the right rows: kind, shape, number format, seconds and source."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
from helpers.foreign_tables import aic, stats, table, take

from inferometer import BadFile
from inferometer.inference.model_shapes import model_shapes

HAS_PYARROW = importlib.util.find_spec("pyarrow") is not None
ATTENTION = {"batch_size": 2, "num_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "beam_width": 1}
MOE = {
    "moe_dtype": "bfloat16",
    "num_tokens": 16,
    "hidden_size": 2048,
    "inter_size": 768,
    "topk": 8,
    "num_experts": 128,
    "moe_tp_size": 1,
    "moe_ep_size": 1,
    "distribution": "balanced",
    "latency": 0.5,
}
EXCHANGE = {"ep_size": 8, "node_num": 1, "hidden_size": 4096, "topk": 8, "num_tokens": 64, "notify_us": 5.0}
COPIES = 8 * (1 - (7 / 8) ** 8)  # ranks that hold one of a token's eight experts


@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "row", "kind", "dtype", "shape", "seconds"),
    [
        (
            "gemm",
            {"gemm_dtype": "bfloat16", "m": 8, "n": 6144, "k": 4096, "latency": 0.0125},
            "linear",
            "bf16",
            "m=8 n=6144 k=4096",
            1.25e-5,
        ),
        (
            "gemm",
            {"gemm_dtype": "int4_wo", "m": 8, "n": 6144, "k": 4096, "latency": 0.0125},
            "linear",
            "w4a16",
            "m=8 n=6144 k=4096",
            1.25e-5,
        ),
        (
            "context_attention",
            ATTENTION
            | {
                "isl": 512,
                "step": 1024,
                "attn_dtype": "bfloat16",
                "kv_cache_dtype": "fp8",
                "window_size": 128,
                "latency": 0.2,
            },
            "prefill_attention",
            "bf16",
            "seqs=2 heads=32 kv_heads=8 head_dim=128 new=512 context=1536 window=128 kv_dtype=fp8",
            2e-4,
        ),
        (
            "context_attention",
            ATTENTION
            | {"isl": 512, "step": 0, "attn_dtype": "fp8", "kv_cache_dtype": "fp8", "window_size": 0, "latency": 0.2},
            "prefill_attention",
            "fp8",
            "seqs=2 heads=32 kv_heads=8 head_dim=128 new=512 context=512",
            2e-4,
        ),
        (
            "generation_attention",
            ATTENTION
            | {"isl": 1, "step": 1023, "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16", "latency": 0.02},
            "decode_attention",
            "bf16",
            "seqs=2 heads=32 kv_heads=8 head_dim=128 context=1024",
            2e-5,
        ),
        (
            "mla_context",
            {
                "mla_dtype": "bfloat16",
                "kv_cache_dtype": "fp8",
                "num_heads": 16,
                "batch_size": 4,
                "isl": 256,
                "step": 0,
                "tp_size": 8,
                "latency": 0.04,
            },
            "mla_prefill",
            "bf16",
            "seqs=4 heads=16 new=256 context=256 qk_dim=192 v_dim=128 kv_dtype=fp8",
            4e-5,
        ),
        (
            "mla_generation",
            {
                "mla_dtype": "bfloat16",
                "kv_cache_dtype": "bfloat16",
                "num_heads": 128,
                "batch_size": 4,
                "isl": 1,
                "step": 511,
                "tp_size": 1,
                "latency": 0.02,
            },
            "mla_decode",
            "bf16",
            "seqs=4 heads=128 context=512 kv_rank=512 rope_dim=64",
            2e-5,
        ),
        ("moe", MOE, "moe", "bf16", "tokens=16 hidden=2048 inner=768 experts=128 top_k=8", 5e-4),
        (
            "moe",
            MOE | {"distribution": "power_law_1.2", "moe_ep_size": 8, "moe_dtype": "fp8_block"},
            "moe",
            "fp8-block",
            "tokens=16 hidden=2048 inner=768 experts=16 top_k=8 skew=1.2 ep=8",
            5e-4,
        ),
        ("moe", MOE | {"moe_tp_size": 4}, "moe", "bf16", "tokens=16 hidden=2048 inner=192 experts=128 top_k=8", 5e-4),
        (
            "scale_matrix",
            {"quant_dtype": "fp8", "m": 64, "k": 4096, "latency": 0.002},
            "quantize",
            "fp8",
            "m=64 n=4096",
            2e-6,
        ),
        (
            "alltoall",
            {"nccl_dtype": "half", "num_gpus": 8, "message_size": 1024, "latency": 0.012},
            "all_to_all",
            "fp16",
            "bytes=2048 ranks=8",
            1.2e-5,
        ),
        (
            "all_gather",
            {"nccl_dtype": "int8", "num_gpus": 4, "message_size": 1024, "latency": 0.012},
            "all_gather",
            "int8",
            "bytes=1024 ranks=4",
            1.2e-5,
        ),
        (
            "all_reduce",
            {"allreduce_dtype": "bfloat16", "num_gpus": 2, "message_size": 1024, "latency": 0.006},
            "all_reduce",
            "bf16",
            "bytes=2048 ranks=2 library=vllm",
            6e-6,
        ),
        (
            "moe_a2a",
            EXCHANGE
            | {"comm_dtype": "fp8", "phase": "dispatch", "comm_backend": "ll", "transmit_us": 40.0, "latency": 45.0},
            "all_to_all",
            "fp8",
            f"bytes={round(64 * COPIES * 4096)} ranks=8 library=deepep",
            4.5e-5,
        ),
    ],
)
def test_aiconfigurator(
    tmp_path: Path, op: str, row: dict[str, Any], kind: str, dtype: str, shape: str, seconds: float
) -> None:
    rows, counts, _ = take(table(tmp_path / "t.csv", aic(op, row)))
    assert list(rows) == [(kind, shape)]
    found = rows[kind, shape]
    assert found[0] == dtype and found[1] == pytest.approx(seconds, rel=1e-4)
    assert found[2].startswith(
        "aiconfigurator nccl 0.24.0 k" if "nccl_dtype" in row else "aiconfigurator vllm 0.24.0 k"
    )
    assert counts["skipped"] == counts["floor"] == 0


def test_deepep_has_two_phases_a_row(tmp_path: Path) -> None:
    fast = {
        "node_num": 1,
        "hidden_size": 4096,
        "num_token": 64,
        "num_topk": 8,
        "num_experts": 256,
        "dispatch_avg_t_us": 20.0,
        "combine_avg_t_us": 30.0,
    }
    rows, _, _ = take(table(tmp_path / "t.csv", aic("ll", fast)))
    sent = round(64 * COPIES * 4096)
    assert rows["all_to_all", f"bytes={sent} ranks=8 library=deepep"][:2] == ("fp8", 2e-5)
    assert rows["all_to_all", f"bytes={round(64 * COPIES * 8192)} ranks=8 library=deepep"][:2] == ("bf16", 3e-5)
    slow = {k: v for k, v in fast.items() if "avg" not in k}
    for phase, time in (("dispatch", 40.0), ("combine", 60.0)):
        slow |= {f"{phase}_sms": 20, f"{phase}_transmit_us": time, f"{phase}_notify_us": 2.0}
    rows, _, _ = take(table(tmp_path / "n.csv", aic("normal", slow)), output="n-out.csv")
    dtype, seconds, source = rows["all_to_all", f"bytes={sent} ranks=8 library=deepep"]
    assert (dtype, seconds) == ("fp8", 4.2e-5) and source.endswith("normal dispatch on 20 SMs")


@pytest.mark.parametrize(
    ("op", "row", "reason"),
    [
        ("mla_context_module", {"latency": 0.2}, "a whole attention module"),
        ("compute_scale", {"latency": 0.2}, "the difference of two timings"),
        ("gdn", {"latency": 0.2}, "operation 'gdn' is not a known kind"),
        ("gemm", {"gemm_dtype": "fp3", "m": 8, "n": 64, "k": 64, "latency": 0.0125}, "number format 'fp3'"),
        ("gemm", {"gemm_dtype": "bfloat16", "m": 8, "n": 64, "k": 64, "latency": 0}, "a time of zero"),
        ("moe", MOE | {"hidden_size": 2688, "inter_size": 1856}, "experts without a gate"),  # Nemotron 3 Nano
        ("gemm", {"gemm_dtype": "bfloat16", "m": 0, "n": 64, "k": 64, "latency": 0.01}, "a size of zero"),
        ("moe", MOE | {"distribution": "zigzag"}, "neither even nor a power law"),
        ("moe_a2a", EXCHANGE | {"comm_dtype": "default", "phase": "dispatch", "transmit_us": 40.0}, "format 'default'"),
        (
            "moe_a2a",
            EXCHANGE | {"comm_dtype": "fp8", "phase": "dispatch", "transmit_us": 40.0, "node_num": 2},
            "several nodes",
        ),
        (
            "context_attention",
            ATTENTION
            | {"isl": 8, "step": 0, "attn_dtype": "bfloat16", "kv_cache_dtype": "fp8", "beam_width": 4, "latency": 0.2},
            "several beams",
        ),
    ],
)
def test_what_has_no_place_is_counted_with_its_reason(
    tmp_path: Path, op: str, row: dict[str, Any], reason: str
) -> None:
    path = table(tmp_path / "t.csv", aic(op, row))
    with pytest.raises(BadFile, match="nothing to import: 1 rows skipped") as error:
        take(path)
    assert reason in str(error.value)
    assert not (tmp_path / "out.csv").exists()


def test_ungated_experts_are_told_by_their_kernel_too(tmp_path: Path) -> None:
    rows = aic("moe", MOE, kernel="moe_torch_flow_nongated") + aic("moe", MOE | {"num_tokens": 32})
    found, counts, _ = take(table(tmp_path / "t.csv", rows))
    assert counts["skipped"] == 1 and [shape for _, shape in found] == [
        "tokens=32 hidden=2048 inner=768 experts=128 top_k=8"
    ]


def test_two_kernels_for_experts_in_mxfp4_are_told_apart(tmp_path: Path) -> None:
    other = MOE | {"moe_dtype": "w4a16_mxfp4"}
    rows = aic("moe", other, kernel="gptossmxfp4moe_marlin") + aic("moe", other | {"num_tokens": 32}, kernel="triton")
    found, _, _ = take(table(tmp_path / "t.csv", rows))
    assert sorted(dtype for dtype, _, _ in found.values()) == ["mxfp4", "mxfp4-marlin"]


@pytest.mark.skipif(not HAS_PYARROW, reason="pyarrow is not installed")
def test_parquet_is_read_like_csv(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    rows = aic("gemm", *({"gemm_dtype": "fp8", "m": m, "n": 64, "k": 128, "latency": 0.01} for m in (1, 8)))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    assert take(tmp_path / "t.parquet")[0] == take(table(tmp_path / "t.txt", rows), output="csv-out.csv")[0]
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadFile, match=r"broken\.parquet cannot be read as Parquet"):
        take(tmp_path / "broken.parquet", output="b.csv")


def test_who_measured_may_stand_in_a_manifest_or_in_names(tmp_path: Path) -> None:
    bare = [{"op_name": "gemm", "kernel_source": "k", "gemm_dtype": "fp8", "m": 1, "n": 64, "k": 64, "latency": 0.01}]
    path = table(tmp_path / "a" / "gemm.csv", bare)
    constants = {"device": "NVIDIA B200", "framework": "TRTLLM", "version": "1.3.0"}
    (path.parent / "manifest.json").write_text(json.dumps([{"file": "gemm.csv", "constants": constants}]))
    rows, _, said = take(path)
    assert rows["linear", "m=1 n=64 k=64"][2] == "aiconfigurator trtllm 1.3.0 k" and "of b200" in said[0]
    for place in ("systems/data/h100_sxm/vllm/0.14.0/gemm_perf.txt", "b/h100_sxm__vllm_0.14.0__gemm_perf.csv"):
        rows, _, said = take(table(tmp_path / place, bare))
        assert rows["linear", "m=1 n=64 k=64"][2] == "aiconfigurator vllm 0.14.0 k" and "of h100-sxm" in said[0]


# ------------------------------------------------------------------ Vidur, LLMServingSim, LLM-Profile


def test_vidur_mlp(tmp_path: Path) -> None:
    sizes = {
        "n_head": 64,
        "n_kv_head": 8,
        "n_embd": 8192,
        "n_expanded_embd": 28672,
        "vocab_size": 32000,
        "use_gated_mlp": True,
        "num_tokens": 128,
        "num_tensor_parallel_workers": 2,
    }
    times = stats(
        emb=0.01,
        input_layernorm=0.02,
        attn_pre_proj=0.5,
        attn_rope=0.03,
        attn_post_proj=0.4,
        mlp_up_proj=1.5,
        mlp_act=0.04,
        mlp_down_proj=0.7,
        add=0.02,
    )
    rows, counts, _ = take(table(tmp_path / "mlp.csv", [times | sizes]), gpu="a100-sxm-80gb")
    assert {key: value[:2] for key, value in rows.items()} == {
        ("embedding", "m=128 n=8192 rows=16000"): ("fp16", 1e-5),
        ("norm", "m=128 n=8192"): ("fp16", 2e-5),
        ("linear", "m=128 n=5120 k=8192"): ("fp16", 5e-4),
        ("rope", "m=128 heads=32 kv_heads=4 head_dim=128"): ("fp16", 3e-5),
        ("linear", "m=128 n=8192 k=4096"): ("fp16", 4e-4),
        ("linear", "m=128 n=28672 k=8192"): ("fp16", 1.5e-3),
        ("activation", "m=128 n=28672"): ("fp16", 4e-5),
        ("linear", "m=128 n=8192 k=14336"): ("fp16", 7e-4),
    }
    assert counts["skipped"] == 1  # add


def test_vidur_attention(tmp_path: Path) -> None:
    sizes = {
        "n_embd": 8192,
        "n_q_head": 64,
        "n_kv_head": 8,
        "block_size": 16,
        "num_tensor_parallel_workers": 2,
        "attention_backend": "AttentionBackend.FLASH_ATTENTION",
    }
    decode = sizes | {"batch_size": 4, "prefill_chunk_size": 0, "kv_cache_size": 1023, "is_prefill": False}
    prompt = sizes | {"batch_size": 1, "prefill_chunk_size": 512, "kv_cache_size": 1024, "is_prefill": True}
    rows, counts, _ = take(
        table(
            tmp_path / "attention.csv",
            [
                stats(attn_decode=0.05, attn_prefill="", attn_kv_cache_save=0.01, attn_input_reshape=0.001) | decode,
                stats(attn_decode="", attn_prefill=0.3, attn_kv_cache_save=0.0, attn_input_reshape="") | prompt,
            ],
        ),
        gpu="a100",
    )
    heads = "heads=32 kv_heads=4 head_dim=128"
    assert rows == {
        ("decode_attention", f"seqs=4 {heads} context=1024"): ("fp16", 5e-5, "vidur FLASH_ATTENTION"),
        ("prefill_attention", f"seqs=1 {heads} new=512 context=1536"): ("fp16", 3e-4, "vidur FLASH_ATTENTION"),
        ("kv_write", "m=4 kv_heads=4 head_dim=128"): ("fp16", 1e-5, "vidur FLASH_ATTENTION"),
    }
    assert counts["skipped"] == 2  # a reshape, and a time of zero


def test_vidur_collectives(tmp_path: Path) -> None:
    one = {"rank": 0, "num_workers": 4, "size": 65536, "collective": "all_reduce", "devices_per_node": 4}
    two = one | {"size": 131072}
    rows, counts, _ = take(
        table(
            tmp_path / "a100_dgx" / "all_reduce.csv",
            [
                {"": 0} | stats(all_reduce=0.03) | one,
                {"": 1} | stats(all_reduce=0.05) | one,
                {"": 2} | stats(all_reduce=0.06) | two,
                {"": 3} | stats(all_reduce=0.5) | two | {"devices_per_node": 1},
            ],
        )
    )
    assert rows == {
        ("all_reduce", "bytes=65536 ranks=4"): ("fp16", 4e-5, "vidur nccl"),  # the median of two
        ("all_reduce", "bytes=131072 ranks=4"): ("fp16", 6e-5, "vidur nccl"),
    }
    assert counts["repeated"] == 1 and counts["skipped"] == 1
    path = table(
        tmp_path / "send_recv.csv", [stats(send_recv=0.02) | one | {"collective": "send_recv", "num_workers": 2}]
    )
    assert take(path, output="s.csv")[0] == {("send", "bytes=65536 ranks=2"): ("fp16", 2e-5, "vidur nccl")}


META = """profiler_version: 1.0.0
vllm_version: 0.19.0
gpu: NVIDIA GeForce RTX 4090
hardware: RTX4090
profiled_at: '2026-08-17T19:43:32+00:00'
model: {model}
variant: {variant}
tp_degrees:
- 1
- 2
engine_effective:
  model: /somewhere/else
"""


def servingsim(
    folder: Path,
    name: str,
    rows: list[dict[str, Any]],
    tp: int = 1,
    model: str = "meta-llama/Llama-3.1-8B",
    variant: str = "bf16",
) -> Path:
    path = table(folder / f"tp{tp}" / name, rows)
    (folder / "meta.yaml").write_text(META.format(model=model, variant=variant))
    return path


def test_llmservingsim_layers(tmp_path: Path) -> None:
    layers = (
        "embedding",
        "layernorm",
        "qkv_proj",
        "rotary_emb",
        "o_proj",
        "gate_up_proj",
        "act_fn",
        "down_proj",
        "odd",
    )
    rows, counts, said = take(
        servingsim(
            tmp_path,
            "dense.csv",
            [{"layer": w, "tokens": 16, "time_us": 100 * i} for i, w in enumerate(layers, 1)],
            tp=2,
        )
    )
    assert {key: value[1] for key, value in rows.items()} == {
        ("embedding", "m=16 n=4096 rows=64128"): 1e-4,
        ("norm", "m=16 n=4096"): 2e-4,
        ("linear", "m=16 n=3072 k=4096"): 3e-4,
        ("rope", "m=16 heads=16 kv_heads=4 head_dim=128"): 4e-4,
        ("linear", "m=16 n=4096 k=2048"): 5e-4,
        ("linear", "m=16 n=14336 k=4096"): 6e-4,
        ("activation", "m=16 n=14336"): 7e-4,
        ("linear", "m=16 n=4096 k=7168"): 8e-4,
    }
    assert counts["skipped"] == 1 and "of rtx4090" in said[0]
    assert {value[0] for value in rows.values()} == {"bf16"}
    assert {value[2] for value in rows.values()} == {"llmservingsim vllm 0.19.0"}
    more = [{"layer": word, "sequences": 8, "time_us": time} for word, time in (("lm_head", 1200), ("sampler", 12))]
    path = table(tmp_path / "tp1" / "per_sequence.csv", more)
    assert {key: value[1] for key, value in take(path)[0].items()} == {
        ("linear", "m=8 n=128256 k=4096"): 1.2e-3,
        ("sampler", "m=8 n=128256"): 1.2e-5,
    }


def test_llmservingsim_attention(tmp_path: Path) -> None:
    names = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us")
    cases = [(0, 0, 8, 1023, 50), (512, 1024, 0, 0, 300), (512, 1024, 8, 1023, 340), (0, 0, 0, 0, 1)]
    path = servingsim(tmp_path, "attention.csv", [dict(zip(names, c, strict=True)) for c in cases], variant="fp8-kvfp8")
    rows, counts, _ = take(path)
    heads = "heads=32 kv_heads=8 head_dim=128"
    assert {key: value[:2] for key, value in rows.items()} == {
        ("decode_attention", f"seqs=8 {heads} context=1024 kv_dtype=fp8"): ("bf16", 5e-5),
        ("prefill_attention", f"seqs=1 {heads} new=512 context=1536 kv_dtype=fp8"): ("bf16", 3e-4),
        ("mixed_attention", f"new=512 cached=1024 seqs=8 context=1024 {heads} kv_dtype=fp8"): ("bf16", 3.4e-4),
    }
    assert counts["skipped"] == 1
    path = servingsim(tmp_path / "plain", "attention.csv", [dict(zip(names, cases[0], strict=True))])
    assert list(take(path)[0]) == [("decode_attention", f"seqs=8 {heads} context=1024")]


def test_llmservingsim_experts_are_those_of_even_routing(tmp_path: Path) -> None:
    cases = [(1, 1, 8, 48), (1, 16, 8, 53), (1, 512, 128, 900), (4, 512, 32, 265)]
    rows = [dict(zip(("ep", "tokens", "activated_experts", "time_us"), case, strict=True)) for case in cases]
    found, counts, _ = take(servingsim(tmp_path, "moe.csv", rows, model="Qwen/Qwen3-30B-A3B-Instruct-2507"))
    assert {shape: value[1] for (_, shape), value in found.items()} == {
        "tokens=1 hidden=2048 inner=768 experts=128 top_k=8": 4.8e-5,
        "tokens=512 hidden=2048 inner=768 experts=128 top_k=8": 9e-4,
        "tokens=512 hidden=2048 inner=768 experts=32 top_k=8 ep=4": 2.65e-4,
    }
    assert counts["skipped"] == 1


def test_llmservingsim_says_what_it_needs(tmp_path: Path) -> None:
    rows = [{"layer": "o_proj", "tokens": 16, "time_us": 1}]
    with pytest.raises(BadFile, match=r"needs LLMServingSim's meta\.yaml"):
        take(table(tmp_path / "alone" / "dense.csv", rows))
    with pytest.raises(BadFile, match="'nobody/nothing', which the catalogue does not have"):
        take(servingsim(tmp_path / "a", "dense.csv", rows, model="nobody/nothing"))
    with pytest.raises(BadFile, match="'mine', which is not a known number format"):
        take(servingsim(tmp_path / "b", "dense.csv", rows, variant="mine"))
    servingsim(tmp_path / "c", "dense.csv", rows)
    with pytest.raises(BadFile, match="across how many GPUs"):
        take(table(tmp_path / "c" / "elsewhere" / "dense.csv", rows))


def test_llm_profile(tmp_path: Path) -> None:
    layers = {
        "embedding": 3,
        "input_layernorm": 20,
        "q_proj": 46,
        "k_proj": 21,
        "rope": 30,
        "o_proj": 47,
        "gate_proj": 150,
        "act_fn": 3,
        "down_proj": 149,
        "lm_head": 1200,
        "attn": 7,
    }
    start = {"hardware": "RTX3090", "model": "meta-llama/Llama-3.1-8B"}
    rows = [{**start, "layer_name": w, "input": 4, "kv_cache": 0, "latency(ns)": t * 1000} for w, t in layers.items()]
    rows += [{**start, "layer_name": "o_proj", "input": 4, "kv_cache": 0, "latency(ns)": t} for t in (47000, 51000)]
    past = {**start, "layer_name": "attn", "input": 1, "kv_cache": 99, "latency(ns)": 8000}
    rows += [past, past | {"input": 2}, past | {"model": "nobody/nothing"}]
    found, counts, said = take(table(tmp_path / "profile.csv", rows))
    heads = "heads=32 kv_heads=8 head_dim=128"
    assert {key: round(value[1] * 1e6) for key, value in found.items()} == {
        ("embedding", "m=4 n=4096 rows=128256"): 3,
        ("norm", "m=4 n=4096"): 20,
        ("linear", "m=4 n=4096 k=4096"): 47,  # q_proj and three times o_proj are one shape: the median of the four
        ("linear", "m=4 n=1024 k=4096"): 21,
        ("rope", f"m=4 {heads}"): 30,
        ("linear", "m=4 n=14336 k=4096"): 150,
        ("linear", "m=4 n=4096 k=14336"): 149,
        ("linear", "m=4 n=128256 k=4096"): 1200,
        ("prefill_attention", f"seqs=1 {heads} new=4 context=4"): 7,
        ("decode_attention", f"seqs=1 {heads} context=100"): 8,
    }
    assert counts["skipped"] == 3 and counts["repeated"] == 3 and "of rtx3090" in said[0]
    with pytest.raises(BadFile, match="several devices: A, B"):
        take(table(tmp_path / "two.csv", [rows[0] | {"hardware": "A"}, rows[0] | {"hardware": "B"}]), output="2.csv")


def test_sizes_of_models_come_from_the_catalogue() -> None:
    one, four = model_shapes("llama-3.1-8b"), model_shapes("llama-3.1-8b", 4)
    assert one and four and model_shapes("nobody/nothing") is None
    assert one.products["qkv_proj"] == (6144, 4096) and four.products["qkv_proj"] == (1536, 4096)
    assert four.attention == (8, 2, 128) and four.activation == 7168 and four.hidden == 4096
    mixed, latent = model_shapes("gemma-2-9b"), model_shapes("deepseek-v3")
    assert mixed and latent and mixed.attention is None and latent.attention is None  # windows in turn; latents
    assert latent.experts == (7168, 2048, 256, 8)
    opt = model_shapes("opt-6.7b")
    assert opt and opt.products["fc1"] == (16384, 4096) and opt.activation == 0
