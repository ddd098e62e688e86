"""Families with recurrent layers: parameters, cache and state of the real models, and what their operators do."""

from __future__ import annotations

import copy
import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from inferometer.base.errors import BadFile, InferometerError
from inferometer.base.symbols import evaluate
from inferometer.costs.step import Group, Step
from inferometer.inference.weights import ALONE
from inferometer.network import families
from inferometer.network.families import build
from inferometer.network.graph import Block, Model

CATALOGUE = Path(families.__file__).parents[2] / "data" / "models"
BYTES = {"act_bytes": 2, "kv_bytes": 2, "norm_bytes": 2, "unfused": 1, "eager": 0, "routing_skew": 0}
ROLES = ("attn", "mlp", "experts", "shared", "router", "head", "embed", "vision")

# name in the catalogue: parameters (language model, active, prediction modules), bytes of bf16 cache per token and of
# state (fp32, or bf16 where vLLM keeps it in the model's dtype) and bf16 convolution history per sequence
REAL: dict[str, tuple[int, int, int, int, int, int]] = {
    "qwen3-next-80b-a3b": (79_674_391_296, 3_563_764_480, 1_650_471_424, 24_576, 75_497_472, 1_769_472),
    "qwen3.5-397b-a17b": (396_346_350_336, 16_331_922_176, 6_595_568_128, 30_720, 188_743_680, 3_317_760),
    "qwen3.5-122b-a10b": (122_111_526_912, 9_008_449_536, 2_523_679_232, 24_576, 150_994_944, 2_654_208),
    "qwen3.5-35b-a3b": (34_660_610_688, 2_946_429_568, 844_640_768, 20_480, 62_914_560, 1_474_560),
    "qwen3.6-35b-a3b": (34_660_610_688, 2_946_429_568, 844_640_768, 20_480, 62_914_560, 1_474_560),
    "qwen3.5-27b": (26_895_998_464, 25_624_600_064, 424_699_392, 65_536, 150_994_944, 2_949_120),
    "qwen3.6-27b": (26_895_998_464, 25_624_600_064, 424_699_392, 65_536, 150_994_944, 2_949_120),
    "nemotron-3-nano-30b-a3b": (31_577_940_288, 3_227_754_816, 0, 6_144, 48_234_496, 847_872),
    "nemotron-3.5-lightning-30b-a3b": (31_577_940_288, 3_227_754_816, 1_335_325_952, 6_144, 48_234_496, 847_872),
    "nemotron-3-super-120b-a12b": (120_668_707_840, 12_233_366_528, 2_942_325_248, 8_192, 167_772_160, 2_457_600),
    "nemotron-3-ultra-550b-a55b": (549_308_993_536, 54_985_101_312, 11_215_610_368, 12_288, 402_653_184, 5_308_416),
    "nemotron-h-56b": (56_324_350_464, 55_250_608_640, 0, 40_960, 905_969_664, 6_635_520),
    "llama-3_3-nemotron-super-49b-v1": (49_867_145_216, 48_816_472_064, 0, 200_704, 0, 0),
    "kimi-k3": (2_779_484_478_208, 104_189_614_848, 0, 27_648, 434_110_464, 15_261_696),
    "kimi-linear-48b-a3b": (49_122_681_728, 3_106_972_544, 0, 8_064, 41_943_040, 1_474_560),
    "minimax-text-01": (456_089_655_296, 47_174_113_280, 0, 40_960, 146_800_640, 0),
    "jamba-v0.1": (51_570_323_328, 11_841_875_840, 0, 16_384, 7_340_032, 1_376_256),
    "ai21-jamba-1.5-mini": (51_570_323_328, 11_841_875_840, 0, 16_384, 7_340_032, 1_376_256),
    "ai21-jamba-1.5-large": (398_555_145_696, 93_612_467_680, 0, 36_864, 33_030_144, 6_193_152),
    "bamba-9b": (9_780_235_392, 9_254_898_816, 0, 12_288, 60_817_408, 1_469_952),
    "granite-4.0-h-small": (32_207_337_984, 8_803_121_664, 0, 16_384, 75_497_472, 1_824_768),
    "granite-4.0-h-tiny": (6_939_037_248, 1_465_470_528, 0, 8_192, 28_311_552, 718_848),
    "falcon-h1-34b": (33_642_516_224, 32_305_581_824, 0, 147_456, 150_994_944, 2_211_840),
    "lfm2-8b-a1b": (8_339_930_560, 1_557_740_992, 0, 12_288, 0, 147_456),
    "lfm2-350m": (354_483_968, 354_483_968, 0, 12_288, 0, 40_960),
    "falcon-mamba-7b": (7_272_665_088, 7_006_326_784, 0, 0, 33_554_432, 3_145_728),
    "mamba-2.8b": (2_768_345_600, 2_768_345_600, 0, 0, 20_971_520, 1_966_080),
    "mamba2-2.7b": (2_702_599_680, 2_702_599_680, 0, 0, 167_772_160, 2_064_384),
}


def config(name: str) -> dict[str, Any]:
    """The config of a model in the catalogue."""
    found: dict[str, Any] = tomllib.loads((CATALOGUE / f"{name}.toml").read_text())["config"]
    return found


def text(model: Model) -> list[Block]:
    return [block for block in model.blocks if block.stage != "vision"]


def work(blocks: list[Block] | tuple[Block, ...], field: str, **names: float) -> float:
    """The sum of a kind of work over blocks."""
    roles = {f"{role}_{word}_bytes": 2 for role in ROLES for word in ("weight", "input")}
    total = 0.0
    for block in blocks:
        env = {**ALONE, **BYTES, **roles, "state_bytes": 4, **names, **block.dims}
        total += block.count * sum(evaluate(getattr(op.work, field), env) for op in block.ops)
    return total


def cache(model: Model, **names: float) -> tuple[float, float]:
    """Bytes per token and per sequence."""
    per_token = per_sequence = 0.0
    for block in model.blocks:
        env = {**ALONE, **BYTES, "state_bytes": model.state_bits / 8, **names, **block.dims}
        for op in block.ops:
            if op.cache is not None:
                per_token += block.count * evaluate(op.cache.per_token, env)
                per_sequence += block.count * evaluate(op.cache.per_sequence, env)
    return per_token, per_sequence


def step(model: Model, *groups: Group) -> dict[str, float]:
    sums = Step(groups).sums(model.spans)
    return {**sums, "moe_tokens": sums["tokens"]}


@pytest.mark.parametrize("name", REAL)
def test_parameters_of_real_models(name: str) -> None:
    total, active, ahead, *_ = REAL[name]
    model = build(config(name), name)
    assert not model.warnings
    assert work(text(model), "params") == pytest.approx(total, rel=1e-6)
    assert work(model.blocks, "active") == pytest.approx(active, rel=1e-6)
    assert work(model.extras, "params") == pytest.approx(ahead, rel=1e-4)


@pytest.mark.parametrize("name", REAL)
def test_cache_and_state_of_real_models(name: str) -> None:
    *_, per_token, state, history = REAL[name]
    model = build(config(name), name)
    assert cache(model) == (per_token, state + history)


@pytest.mark.parametrize("name", REAL)
def test_a_token_multiplies_by_what_is_active(name: str) -> None:
    """Products of one decoded token: two operations per active parameter, and some for scans, norms and attention."""
    model = build(config(name), name)
    flops = work(text(model), "flops", **step(model, Group(1, 1, 0, decode=True)))
    assert 1 <= flops / (2 * REAL[name][1]) < 1.06


@pytest.mark.parametrize("name", REAL)
def test_four_devices_share_the_weights_and_the_state(name: str) -> None:
    model = build(config(name), name)
    four = {"tp": 4, "moe_tp": 4}
    stored = work(text(model), "stored", **four) / work(text(model), "stored")
    assert 0.25 <= stored < 0.27
    _, alone = cache(model)
    _, shared = cache(model, tp=4)
    assert alone / 4 <= shared <= alone / 4 * 1.01  # convolutions over what all heads share are on each


# name: (published total in billions, layers by the mixer that they have)
PUBLISHED = {
    "jamba-v0.1": (51.57, {"ssm_scan": 28, "attention": 4, "experts": 16}),
    "ai21-jamba-1.5-large": (398.6, {"ssm_scan": 63, "attention": 9, "experts": 36}),
    "bamba-9b": (9.78, {"ssm_scan": 29, "attention": 3, "experts": 0}),
    "granite-4.0-h-small": (32.2, {"ssm_scan": 36, "attention": 4, "experts": 40}),
    "granite-4.0-h-tiny": (6.94, {"ssm_scan": 36, "attention": 4, "experts": 40}),
    "falcon-h1-34b": (33.6, {"ssm_scan": 72, "attention": 72, "experts": 0}),
    "lfm2-8b-a1b": (8.34, {"conv1d": 18, "attention": 6, "experts": 22}),
    "minimax-text-01": (456, {"linear_attention": 70, "attention": 10, "experts": 80}),
    "kimi-linear-48b-a3b": (49.1, {"linear_attention": 20, "attention": 7, "experts": 26}),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_and_published_totals_of_hybrids(name: str) -> None:
    total, layers = PUBLISHED[name]
    model = build(config(name), name)
    assert work(text(model), "params") == pytest.approx(total * 1e9, rel=0.002)
    for op, count in layers.items():
        assert sum(b.count for b in model.blocks if any(o.name == op for o in b.ops)) == count, op


def test_jamba_layers_stand_where_its_periods_say() -> None:
    model = build(config("jamba-v0.1"))
    attention = next(b for b in model.blocks if any(op.kind == "decode_attention" for op in b.ops))
    assert attention.layers == (4, 12, 20, 28)
    assert not any(op.name == "rope" for op in attention.ops)
    experts = sorted(i for b in model.blocks if any(op.kind == "moe" for op in b.ops) for i in b.layers)
    assert experts == list(range(1, 32, 2))
    with pytest.raises(BadFile, match="'attn_layer_offset' 8 must be smaller than 'attn_layer_period' 8"):
        build(config("jamba-v0.1") | {"attn_layer_offset": 8})


def test_a_jamba_of_one_expert_is_dense() -> None:
    model = build(config("jamba-v0.1") | {"num_experts": 1, "num_experts_per_tok": 1})
    assert not any(op.kind == "moe" for block in model.blocks for op in block.ops)


def test_falcon_h1_adds_attention_and_mamba_of_one_norm() -> None:
    model = build(config("falcon-h1-34b"))
    (block,) = (b for b in model.blocks if b.stage == "layer")
    ops = {op.name: op for op in block.ops}
    assert ops["in_proj"].inputs == ("input_layernorm",) and ops["add"].inputs == ("o_proj", "out_proj")
    plain = build(config("falcon-h1-34b") | {"mamba_rms_norm": False})
    assert work(text(model), "params") - work(text(plain), "params") == 72 * 4096


def test_granite_4_reads_both_words_for_its_layers_and_goes_without_experts() -> None:
    data = config("granite-4.0-h-tiny")
    renamed = {"mamba": "linear_attention", "attention": "full_attention"}
    new = data | {"layer_types": [renamed[kind] for kind in data["layer_types"]]}
    assert cache(build(new)) == cache(build(data))
    dense = build(data | {"num_local_experts": 0, "num_experts_per_tok": 0, "shared_intermediate_size": 4096})
    assert not any(op.kind == "moe" for block in dense.blocks for op in block.ops)
    with pytest.raises(BadFile, match=r"'layer_types' may have 'mamba', 'linear_attention', .* not 'rwkv'"):
        build(data | {"layer_types": ["rwkv"] * 40})


def test_the_state_of_a_hybrid_is_in_the_models_dtype_unless_the_config_says_otherwise() -> None:
    data = config("bamba-9b")
    assert build(data).state_bits == 16
    assert build(data | {"torch_dtype": "float32"}).state_bits == 32
    assert build(data | {"mamba_ssm_cache_dtype": "float32"}).state_bits == 32


def test_layers_of_qwen3_next() -> None:
    model = build(config("qwen3-next-80b-a3b"))
    linear, full = (block for block in model.blocks if block.stage == "layer")
    assert (linear.count, full.count) == (36, 12)
    assert full.layers == tuple(range(3, 48, 4))
    assert [op.name for op in full.ops][:3] == ["input_layernorm", "qkv_proj", "qk_norm"]


def test_a_list_of_layers_goes_before_the_interval() -> None:
    data = config("qwen3-next-80b-a3b") | {"num_hidden_layers": 2, "layer_types": ["full_attention"] * 2}
    assert cache(build(data)) == (2 * 2 * 2 * 256 * 2, 0)


def test_layers_of_nemotron_are_one_mixer_each() -> None:
    model = build(config("nemotron-3-super-120b-a12b"))
    counts = {block.ops[0].name: block.count for block in model.blocks if block.stage == "layer"}
    assert counts == {"mamba_norm": 40, "moe_norm": 40, "attention_norm": 8}
    assert model.num_layers == 88
    (ahead,) = model.extras
    assert [op.name for op in ahead.ops if op.kind in ("norm", "moe")][:5] == [
        "enorm",
        "hnorm",
        "attention_norm",
        "moe_norm",
        "experts",
    ]
    names = [op.name for block in model.blocks for op in block.ops]
    assert "rope" not in names and "latent_down_proj" in names


def test_pattern_and_list_say_the_same() -> None:
    data = config("nemotron-3-super-120b-a12b")
    words = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}
    listed = {k: v for k, v in data.items() if k not in ("hybrid_override_pattern", "num_hidden_layers")}
    listed["layers_block_type"] = [words[x] for x in data["hybrid_override_pattern"]]
    assert build(listed).blocks == build(data).blocks


def test_layers_of_kimi_k3() -> None:
    model = build(config("kimi-k3"))
    layers = [block for block in model.blocks if block.stage == "layer"]
    kinds = {("latent" if any(op.name == "kv_a_layernorm" for op in b.ops) else "delta", b.count) for b in layers}
    assert kinds == {("delta", 1), ("delta", 68), ("latent", 24)}  # the first has a dense MLP
    assert any(op.name == "output_gate" for b in layers for op in b.ops)
    assert not any(op.name == "rope" for b in layers for op in b.ops)


def test_kimi_linear() -> None:
    """Kimi-Linear-48B-A3B: gates of low rank, no latent experts, queries without compression."""
    full = [4, 8, 12, 16, 20, 24, 27]
    data = {
        "model_type": "kimi_linear",
        "vocab_size": 163840,
        "hidden_size": 2304,
        "num_hidden_layers": 27,
        "num_attention_heads": 32,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "intermediate_size": 9216,
        "moe_intermediate_size": 1024,
        "num_experts": 256,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "first_k_dense_replace": 1,
        "mla_use_nope": True,
        "linear_attn_config": {
            "num_heads": 32,
            "head_dim": 128,
            "short_conv_kernel_size": 4,
            "full_attn_layers": full,
            "kda_layers": [i for i in range(1, 28) if i not in full],
        },
    }
    model = build(data)
    assert work(model.blocks, "params") == pytest.approx(48e9, rel=0.03)
    assert work(model.blocks, "active") == pytest.approx(3e9, rel=0.1)
    assert cache(model) == (7 * 576 * 2, 20 * (32 * 128 * 128 * 4 + 3 * 4096 * 3 * 2))


def test_decoding_reads_and_writes_the_whole_state() -> None:
    model = build(config("mamba2-2.7b"))
    _, state = cache(model)
    sums = step(model, Group(8, 1, 1000, decode=True))
    assert work(model.blocks, "kv_reads", **sums) == work(model.blocks, "kv_writes", **sums) == 8 * state


@pytest.mark.parametrize("name", ["mamba-2.8b", "mamba2-2.7b"])
def test_pure_state_does_not_grow_with_context(name: str) -> None:
    model = build(config(name))
    short, long = (step(model, Group(4, 1, n, decode=True)) for n in (10, 100_000))
    for field in ("flops", "reads", "kv_reads"):
        assert work(model.blocks, field, **short) == work(model.blocks, field, **long)


def test_chunks_cost_prompts_more_than_steps() -> None:
    """A prompt token of a chunked scan adds products inside the chunk: heads × chunk × (6 keys + 4 values)."""
    model = build(config("qwen3-next-80b-a3b"))
    ((dims, scan),) = [(block.dims, op) for block in model.blocks for op in block.ops if op.kind == "scan"]

    def flops(*groups: Group) -> float:
        return float(evaluate(scan.work.flops, {**ALONE, **dims, **step(model, *groups)}))

    state = 32 * 128 * 128
    assert flops(Group(64, 1, 9, decode=True)) == 7 * 64 * state
    assert flops(Group(1, 64)) == 7 * 64 * state + 64 * 32 * 64 * 10 * 128


def test_mamba_2_has_kernels_of_its_own_for_each_phase() -> None:
    """Nemotron-Nano-9B-v2: prompts move two states a chunk through memory twice, decoding sequences theirs once."""
    model = build(config("nvidia-nemotron-nano-9b-v2"))
    block = next(b for b in model.blocks if any(op.kind == "chunk_scan" for op in b.ops))
    ops = {op.kind: op for op in block.ops if op.name == "ssm_scan"}
    state, width, history = 128 * 80 * 128, 128 * 80, 3 * (128 * 80 + 2 * 8 * 128)

    def amount(kind: str, field: str, *groups: Group) -> float:
        env = {**ALONE, **block.dims, "act_bytes": 2, "norm_bytes": 2, "state_bytes": 4, **step(model, *groups)}
        return float(evaluate(getattr(ops[kind].work, field), env))

    prompts, decodes = Group(2, 1024), Group(8, 1, 1000, decode=True)
    assert amount("chunk_scan", "flops", prompts, decodes) == 2048 * (4 * state + 128 * (width + 2 * 8 * 128))
    inside = 2048 * (128 * 8 * 4 + 128 * 8)
    assert amount("chunk_scan", "writes", prompts) == 2048 * width * 2 + 16 * state * 8 + inside
    short = amount("chunk_scan", "writes", Group(2, 32)) - 64 * (width * 2 + 128 * 8 * 4 + 128 * 8)
    assert short == 2 * state * 8, "a short prompt has a chunk of its own"
    assert amount("state_update", "kv_writes", prompts, decodes) == 8 * (state * 4 + history * 2)
    assert not amount("state_update", "flops", prompts) and not amount("chunk_scan", "weights", decodes)


def test_groups_are_replicated_over_more_ranks() -> None:
    """Mamba-2 with one group: each of two ranks has all of B and C, and half of the rest."""
    model = build(config("mamba2-2.7b"))
    block = next(b for b in model.blocks if b.stage == "layer")
    proj = next(op for op in block.ops if op.name == "in_proj")
    env = {**ALONE, **block.dims, "tp": 2}
    assert evaluate(proj.dims["n"], env) == 5120 + 2 * 128 + 40


def test_thinned_layers_of_nemotron_nas() -> None:
    data = config("llama-3_3-nemotron-super-49b-v1") | {"num_hidden_layers": 3}
    data["block_configs"] = [
        {"attention": {"no_op": True}, "ffn": {"ffn_mult": 0.1}},
        {"attention": {"replace_with_linear": True}, "ffn": {"no_op": True}},
        {"attention": {"n_heads_in_group": 16}, "ffn": {"replace_with_linear": True}},
    ]
    model = build(data)
    h = 8192
    own = 2 * 128256 * h + h  # both ends
    own += h + 3 * h * 768  # 2·0.1·8192/3 = 546, rounded up
    own += h + h * h
    own += h + 2 * h * h + 2 * h * 4 * 128 + h + h * h
    assert work(model.blocks, "params") == own
    assert cache(model) == (2 * 4 * 128 * 2, 0)


def test_state_dtype() -> None:
    data = config("nemotron-3-nano-30b-a3b")
    assert build(data).state_bits == 32
    assert build(data | {"mamba_ssm_cache_dtype": "bfloat16"}).state_bits == 16


def test_mamba_sizes_that_configs_leave_out() -> None:
    data = config("mamba-2.8b")
    short = {k: data[k] for k in ("model_type", "hidden_size", "num_hidden_layers", "vocab_size")}
    short["time_step_rank"] = "auto"
    assert build(short).blocks == build(data).blocks


@pytest.mark.parametrize(
    ("name", "change", "sentence"),
    [
        ("qwen3-next-80b-a3b", {"linear_num_key_heads": None}, "linear_num_key_heads"),
        ("qwen3-next-80b-a3b", {"layer_types": ["mamba"] * 48}, "layer_types"),
        ("nemotron-h-56b", {"hybrid_override_pattern": "M-X"}, "'X'"),
        ("nemotron-h-56b", {"hybrid_override_pattern": "M-"}, "118"),
        ("nemotron-h-56b", {"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ("llama-3_3-nemotron-super-49b-v1", {"block_configs": [3] * 80}, "attention"),
        ("llama-3_3-nemotron-super-49b-v1", {"block_configs": None}, "block_configs"),
        ("mamba-2.8b", {"time_step_rank": "many"}, "time_step_rank"),
        ("mamba2-2.7b", {"num_heads": None, "head_dim": 33}, "num_heads"),
    ],
)
def test_broken_configs_get_a_sentence(name: str, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadFile, match=sentence.replace("'", ".")):
        build(config(name) | change)


def test_kimi_layers_without_a_kind_get_a_sentence() -> None:
    data = copy.deepcopy(config("kimi-k3"))
    data["text_config"]["linear_attn_config"]["kda_layers"].remove(2)
    with pytest.raises(BadFile, match="layer 2"):
        build(data)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "qwen3-next-80b-a3b",
        "nemotron-3-super-120b-a12b",
        "nemotron-3-ultra-550b-a55b",
        "llama-3_3-nemotron-super-49b-v1",
        "kimi-k3",
        "falcon-mamba-7b",
        "mamba2-2.7b",
        "jamba-v0.1",
        "bamba-9b",
        "granite-4.0-h-tiny",
        "falcon-h1-34b",
        "lfm2-8b-a1b",
        "lfm2-350m",
        "minimax-text-01",
        "longcat-flash-chat",
        "gemma-3n-e4b",
        "llama-3.2-11b-vision",
        "minicpm-v-4_5",
        "qwen3-omni-30b-a3b",
    ],
)
def test_no_single_broken_value_gives_a_traceback(name: str) -> None:
    original = config(name)
    wrong: list[Any] = [None, "x", -1, 0, 1.5, [], [None], [[]], {}, True, 10**30]
    every = 1 if os.environ.get("INFEROMETER_SLOW_TESTS") else 3  # one in three, others at each place
    for number, place in enumerate(places(original)):
        for junk in wrong[number % every :: every]:
            data = copy.deepcopy(original)
            table = data
            for key in place[:-1]:
                table = table[key]
            table[place[-1]] = junk
            try:
                build(data)
            except InferometerError as error:
                assert str(error).strip()


def places(table: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where the values of a config are; what a vision tower or a quantisation reads has its own tests."""
    found: list[tuple[str, ...]] = []
    for key, value in table.items():
        if key not in ("vision_config", "quantization_config"):
            found += places(value, (*above, key)) if isinstance(value, dict) else [(*above, key)]
    return found
