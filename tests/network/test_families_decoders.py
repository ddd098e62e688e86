"""Families of decoders: parameters against tensor inventories and published figures, cache bytes, and work."""

from __future__ import annotations

import os
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import inferometer.network.families
from inferometer.base.errors import BadFile
from inferometer.base.symbols import evaluate
from inferometer.costs.step import Group, Step, cache_entries
from inferometer.inference.weights import ALONE, parameters
from inferometer.network.families import build
from inferometer.network.graph import Block, Model
from inferometer.specs import catalog

CATALOGUE = Path(inferometer.network.families.__file__).parents[2] / "data" / "models"

# name: (total, active) summed over the shapes of all tensors; active None where all but the input embedding is.
# For some entries the sum is this package's own, kept so that a change is noticed: what checks those independently is
# `params` in the catalogue and CLAIMED below.
COUNTED: dict[str, tuple[float, float | None]] = {
    "deepseek-v4-flash": (284_332_240_471, 13_270_101_591),
    "deepseek-v4-pro": (1_572_997_201_763, 48_852_402_019),
    "gemma-2b": (2_506_172_416, None),
    "gemma-7b": (8_537_680_896, None),
    "gemma-2-2b": (2_614_341_888, None),
    "gemma-2-9b": (9_241_705_984, None),
    "gemma-2-27b": (27_227_128_320, None),
    "gemma-3-1b": (999_885_952, None),
    "gemma-3-4b": (4_300_079_472, None),
    "gemma-3-12b": (12_187_325_040, None),
    "gemma-3-27b": (27_432_406_640, None),
    "gemma-4-26b-a4b": (25_805_936_206, 3_822_530_590),
    "gemma-4-31b": (31_273_088_876, None),
    "minimax-m3": (426_174_572_928, 24_733_280_640),
    "step-3.7-flash": (195_832_712_256, 10_335_947_840),  # as the config is written; 11 B are claimed
    "mimo-7b": (7_622_619_136, None),
    "mimo-v2-flash": (308_778_780_864, 14_820_985_024),
    "llama-4-scout-17b-16e": (107_769_861_120, 16_138_408_960),
    "llama-4-maverick-17b-128e": (400_711_848_960, 16_150_205_440),
    "gpt-oss-20b": (20_914_757_184, 3_608_307_264),
    "gpt-oss-120b": (116_829_156_672, 5_132_849_472),
    "opt-125m": (125_239_296, None),
    "opt-350m": (331_196_416, None),
    "opt-1.3b": (1_315_758_080, None),
    "opt-2.7b": (2_651_596_800, None),
    "opt-6.7b": (6_658_473_984, None),
    "opt-13b": (12_853_473_280, None),
    "opt-30b": (29_974_540_288, None),
    "opt-66b": (65_719_701_504, None),
    "opt-175b": (175e9, None),
    "gpt2": (124_439_808, None),
    "gpt2-medium": (354_823_168, None),
    "gpt2-large": (774_030_080, None),
    "gpt2-xl": (1_557_611_200, None),
    "gpt-3-175b": (174.6e9, None),
    "gpt-j-6b": (6_050_882_784, None),
    "gpt-neox-20b": (20_554_567_680, None),
    "pythia-6.9b": (6_857_302_016, None),
    "bloom": (176_247_271_424, None),
    "bloom-7b1": (7_069_016_064, None),
    "falcon-7b": (6_921_720_704, None),
    "falcon-40b": (41_303_293_952, None),
    "falcon-180b": (179_522_565_120, None),
    "chatglm2-6b": (6_243_584_000, None),
    "chatglm3-6b": (6_243_584_000, None),
    "glm-4-9b": (9_399_951_360, None),
    "phi-2": (2_779_683_840, None),
    "phi-3-mini-4k": (3_821_079_552, None),
    "phi-3-medium-4k": (13_960_238_080, None),
    "phi-4": (14_659_507_200, None),
    "command-r-35b": (34_980_831_232, None),
    "starcoder2-15b": (15_957_889_024, None),
    "dbrx": (131_596_523_520, 36e9),
    "grok-1": (314e9, None),
    "olmo-2-7b": (7_298_617_344, None),
    "qwen-7b": (7_721_324_544, None),
    "internlm2-7b": (7_737_708_544, None),
    "internlm2-20b": (19_861_149_696, None),
    "baichuan2-7b": (7_505_973_248, None),
}

# name: (total, active) in billions as the vendor rounds them, and how far off the name may be
CLAIMED: dict[str, tuple[float, float, float]] = {
    "deepseek-v4-flash": (284, 13, 0.03),
    "deepseek-v4-pro": (1600, 49, 0.02),
    "gemma-4-26b-a4b": (25.8, 3.8, 0.02),
    "mimo-v2-flash": (309, 15, 0.02),
    "llama-4-maverick-17b-128e": (400, 17, 0.055),  # Meta counts the input embedding among the active
    "gpt-oss-20b": (20.9, 3.6, 0.02),
    "gpt-oss-120b": (116.8, 5.1, 0.02),
    "minimax-m3": (428, 23, 0.08),  # active without the LM head, total with the vision tower
    "dbrx": (132, 36, 0.02),
}

# name: (bytes a further token takes in a long context, bytes a sequence takes besides), cache in 16 bit
CACHES = {
    "gemma-3-27b": (10 * 2 * 16 * 128 * 2, 52 * 2 * 16 * 128 * 2 * 1024),
    "gemma-4-26b-a4b": (20_480, 204_800 * 1024),
    "gemma-4-31b": (81_920, 819_200 * 1024),
    "gemma-2-9b": (21 * 2 * 8 * 256 * 2, 21 * 2 * 8 * 256 * 2 * 4096),
    "deepseek-v4-pro": (9_848, 61 * 131_072 + 30 * (65_536 + 16_384) + 31 * 524_288),
    "deepseek-v4-flash": (6_880, 43 * 131_072 + 21 * (65_536 + 16_384) + 20 * 524_288),
    "gpt-oss-20b": (24_576, 24_576 * 128),
    "minimax-m3": (122_880 + 14_592, 0),
    "mimo-v2-flash": (23_040, 199_680 * 128),
    "step-3.7-flash": (49_152, 135_168 * 512),
    "llama-4-scout-17b-16e": (12 * 2 * 8 * 128 * 2, 36 * 2 * 8 * 128 * 2 * 8192),
    "falcon-7b": (32 * 2 * 64 * 2, 0),
    "falcon-40b": (60 * 2 * 8 * 64 * 2, 0),
    "chatglm3-6b": (28_672, 0),
    "opt-350m": (24 * 2 * 1024 * 2, 0),
}


def config(name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((CATALOGUE / f"{name}.toml").read_text())["config"]
    return found


@cache
def model(name: str) -> Model:
    return build(config(name), name)


def summed(blocks: tuple[Block, ...], field: str, **names: float) -> float:
    bound = {**ALONE, **names}
    return sum(
        block.count * float(evaluate(getattr(op.work, field), {**bound, **block.dims}))
        for block in blocks
        for op in block.ops
    )


def cached(m: Model, context: int, kv_bytes: float = 2) -> float:
    names = {**ALONE, "kv_bytes": kv_bytes, "act_bytes": 2, "state_bytes": 4}
    found = 0.0
    for block in m.blocks:
        bound = {**names, **block.dims}
        for op in block.ops:
            if op.cache is not None:
                entries = cache_entries(m.spans[op.cache.span], context)
                found += block.count * float(
                    evaluate(op.cache.per_token, bound) * entries + evaluate(op.cache.per_sequence, bound)
                )
    return found


def step(m: Model, *groups: Group) -> dict[str, Any]:
    """The names of a step in 16 bit on one device."""
    names = {
        f"{role}_{what}_bytes": 2
        for role in ("attn", "mlp", "experts", "shared", "router", "head", "embed")
        for what in ("weight", "input")
    }
    names |= {
        "act_bytes": 2,
        "kv_bytes": 2,
        "norm_bytes": 2,
        "state_bytes": 4,
        "eager": 0,
        "unfused": 1,
        "uniform_lengths": 1,
    }
    sums = Step(groups).sums(m.spans)
    return {**names, **sums, "moe_tokens": sums["tokens"], "routing_skew": 0}


@pytest.mark.parametrize("name", COUNTED)
def test_parameters(name: str) -> None:
    total, active = COUNTED[name]
    m = model(name)
    assert summed(m.blocks, "params") == pytest.approx(total, rel=0.01)
    if active is not None:
        assert summed(m.blocks, "active") == pytest.approx(active, rel=0.02)
    assert summed(m.blocks, "params", tp=4) == summed(m.blocks, "params")  # however it is split


def stated_params(name: str) -> float | None:
    params: float | None = tomllib.loads((CATALOGUE / f"{name}.toml").read_text()).get("params")
    return params


@pytest.mark.parametrize("name", [name for name in sorted(COUNTED) if stated_params(name)])
def test_parameters_of_the_catalogue(name: str) -> None:
    assert summed(model(name).blocks, "params") == pytest.approx(stated_params(name), rel=0.01)


@pytest.mark.parametrize("name", CLAIMED)
def test_parameters_that_vendors_claim(name: str) -> None:
    total, active, slack = CLAIMED[name]
    assert summed(model(name).blocks, "params") / 1e9 == pytest.approx(total, rel=0.02)
    assert summed(model(name).blocks, "active") / 1e9 == pytest.approx(active, rel=slack)


@pytest.mark.parametrize("name", [n for n, (_, active) in COUNTED.items() if active is None and n != "grok-1"])
def test_dense_decoders_use_all_but_the_input_embedding(name: str) -> None:
    m = model(name)
    text = tuple(b for b in m.blocks if b.stage != "vision")
    table = m.sizes["hidden_size"] * m.sizes["vocab_size"]
    total, active = summed(text, "params"), summed(text, "active")
    tied = next(op for b in text if b.stage == "head" for op in b.ops if op.name == "lm_head").work.params == 0
    assert active == pytest.approx(total if tied else total - table, rel=0.015)  # 1.5 %: learned positions


@pytest.mark.parametrize(
    ("name", "modules"),
    [("deepseek-v4-pro", 25_840_145_979), ("deepseek-v4-flash", 6_610_048_891), ("mimo-7b", 210_790_400)],
)
def test_prediction_modules_are_counted_apart(name: str, modules: float) -> None:
    assert summed(model(name).extras, "params") == pytest.approx(modules, rel=1e-3)


@pytest.mark.parametrize("name", CACHES)
def test_cache(name: str) -> None:
    growing, fixed = CACHES[name]
    m, far = model(name), 1 << 17
    assert cached(m, far + 128) - cached(m, far) == pytest.approx(128 * growing)
    assert cached(m, far) - far * growing == pytest.approx(fixed)


def test_compressed_cache_in_fp8_has_rotary_values_and_scales_beside() -> None:
    m, far = model("deepseek-v4-pro"), 1 << 17
    assert m.kv_cache_dtype == "fp8"
    assert (cached(m, far + 128, 1) - cached(m, far, 1)) / 128 == pytest.approx(30 * (584 + 132) / 4 + 31 * 584 / 128)


@pytest.mark.parametrize("name", sorted(COUNTED))
def test_products_multiply_by_the_active_parameters(name: str) -> None:
    """One decoded token costs two operations per active weight, in products of activations and weights."""
    m = model(name)
    text = tuple(b for b in m.blocks if b.stage != "vision")
    names = step(m, Group(1, 1, 1000, 1, True))
    products = [(b, op) for b in text for op in b.ops if op.kind in ("linear", "moe")]
    bound = {**ALONE, **names}
    flops = sum(b.count * float(evaluate(op.work.flops, {**bound, **b.dims})) for b, op in products)
    assert flops == pytest.approx(2 * summed(text, "active"), rel=0.01)


def test_every_formula_has_its_names() -> None:
    """Work, shapes and caches of each family can be priced for a mixed step on four devices."""
    for name in COUNTED:
        m = model(name)
        names = {**ALONE, "tp": 4, "ep": 4, **step(m, Group(2, 512, 64), Group(3, 1, 5000, 1, True))}
        for block in m.blocks + m.extras:
            if block.stage == "vision":
                continue
            for op in block.ops:
                for field in ("flops", "weights", "reads", "writes", "kv_reads", "kv_writes", "sent", "hops", "stored"):
                    assert evaluate(getattr(op.work, field), {**names, **block.dims}) >= 0, (name, op.name, field)
                for size in op.dims.values():
                    evaluate(size, {**names, **block.dims})


def test_inputs_name_earlier_operators() -> None:
    for name in COUNTED:
        for block in model(name).blocks + model(name).extras:
            seen: set[str] = set()
            for op in block.ops:
                assert set(op.inputs or ()) <= seen, (name, block.name, op.name)
                seen.add(op.name)


def test_compressed_attention_sees_window_and_chosen_entries() -> None:
    """DeepSeek-V4-Flash, one token at position t: 128 + 512 keys with ratio 4, 128 + t/128 with ratio 128."""
    m, t = model("deepseek-v4-flash"), 100_000
    names = {**ALONE, **step(m, Group(1, 1, t - 1, 1, True))}
    seen = set()
    for block in m.blocks:
        for op in block.ops:
            if (op.name, op.kind) == ("attention", "decode_attention"):
                seen.add(round(evaluate(op.work.flops, {**names, **block.dims}) / (4 * 64 * 512), 3))
    assert seen == {128.0, 640.0, 128 + 781.25}


def test_grouped_output_projection_is_split_by_groups() -> None:
    m = model("deepseek-v4-flash")
    block = next(b for b in m.blocks if b.stage == "layer")
    op = next(o for o in block.ops if o.name == "o_a_proj")
    one, four = ({**ALONE, "tp": tp, **step(m, Group(8, 1, 100, 1, True)), **block.dims} for tp in (1, 4))
    for field in ("flops", "weights", "reads", "writes", "stored"):
        assert evaluate(getattr(op.work, field), four) == pytest.approx(evaluate(getattr(op.work, field), one) / 4)


def test_sliding_layers_without_layer_types() -> None:
    """Published Gemma configs often leave the list of layers, and many sizes, to the code."""
    bare = {k: v for k, v in config("gemma-2-9b").items() if k != "layer_types"}
    assert cached(build(bare), 1 << 17) == cached(model("gemma-2-9b"), 1 << 17)
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "intermediate_size": 10240,
        "num_hidden_layers": 34,
        "sliding_window": 1024,
    }
    short = build({"model_type": "gemma3", "text_config": text, "vision_config": config("gemma-3-4b")["vision_config"]})
    assert summed(short.blocks, "params") == summed(model("gemma-3-4b").blocks, "params")
    assert cached(short, 1 << 17) == cached(model("gemma-3-4b"), 1 << 17)


def test_layers_with_inputs_of_their_own() -> None:
    """Gemma 4's small ones: a table for every layer, and late layers that reuse keys and values."""
    text = {
        "model_type": "gemma4_text",
        "vocab_size": 1000,
        "vocab_size_per_layer_input": 1000,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "global_head_dim": 32,
        "sliding_window": 8,
        "hidden_size_per_layer_input": 8,
        "num_kv_shared_layers": 2,
        "use_double_wide_mlp": True,
    }
    m = build({"model_type": "gemma4", "text_config": text})
    sliding, full = 2 * 64 * 64 + 2 * 64 * 32 + 32, 2 * 64 * 128  # the only full layer is a sharing one
    shared = [2 * 64 * 64 + 16, full + 32]
    layers = 4 * (sliding + 3 * 64 * 128) + sum(shared) + 2 * 3 * 64 * 256 + 6 * (4 * 64 + 2 * 8 * 64 + 64)
    model_wide = 1000 * 64 + 64 + 1000 * 48 + 64 * 48 + 8
    assert summed(m.blocks, "params") == layers + model_wide
    assert cached(m, 100) == 4 * 8 * 2 * 2 * 16 * 2


def test_step_with_heads_of_its_own_in_sliding_layers() -> None:
    """Step-3.5's whole config, of which Step-3.7's published one is a part."""
    found = config("step-3.7-flash")
    whole = {
        **{k: v for k, v in found.items() if k != "num_key_value_heads"},
        "num_attention_groups": 8,
        "attention_other_setting": {"num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
        "use_head_wise_attn_gate": True,
        "moe_layers_enum": ",".join(map(str, range(3, 45))),
    }
    m = build(whole)
    assert summed(m.blocks, "params") == 196_956_130_368
    assert summed(m.blocks, "active") == 11_459_365_952


def test_older_relatives() -> None:
    """Falcon-RW is sequential with full KV heads; the first ChatGLM and StarCoder are of the biased kind."""
    rw = {
        "model_type": "falcon",
        "vocab_size": 50304,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 32,
        "bias": True,
        "alibi": True,
        "multi_query": False,
        "parallel_attn": False,
    }
    assert summed(build(rw).blocks, "params") == pytest.approx(1.312e9, rel=0.01)
    glm = {
        "model_type": "chatglm",
        "vocab_size": 130528,
        "hidden_size": 4096,
        "inner_hidden_size": 16384,
        "num_layers": 28,
        "num_attention_heads": 32,
    }
    assert summed(build(glm).blocks, "params") == pytest.approx(6.173e9, rel=0.01)
    coder = {
        "model_type": "gpt_bigcode",
        "vocab_size": 49152,
        "n_embd": 6144,
        "n_layer": 40,
        "n_head": 48,
        "n_inner": 24576,
        "n_positions": 8192,
        "multi_query": True,
    }
    assert summed(build(coder).blocks, "params") == pytest.approx(15.52e9, rel=0.01)
    assert cached(build(coder), 100) == 100 * 40 * 2 * 128 * 2


BROKEN: list[Any] = [None, 0, -1, 1.5, 10**12, "many", [], [1], {}, True]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "deepseek-v4-pro",
        "gemma-3-4b",
        "gemma-4-26b-a4b",
        "minimax-m3",
        "step-3.7-flash",
        "mimo-v2-flash",
        "llama-4-scout-17b-16e",
        "opt-350m",
        "gpt2",
        "gpt-neox-20b",
        "bloom",
        "falcon-40b",
        "chatglm3-6b",
        "phi-2",
        "command-r-35b",
        "dbrx",
        "grok-1",
        "qwen-7b",
    ],
)
def test_broken_configs_get_a_sentence(name: str) -> None:
    whole = config(name)
    every = 1 if os.environ.get("INFEROMETER_SLOW_TESTS") else 3  # one in three, others for each key
    for section in ("", "text_config", "sparse_attention_config", "ffn_config", "attn_config"):
        inner = whole.get(section, {}) if section else whole
        for number, key in enumerate(inner):
            if key == "model_type":
                continue
            for value in BROKEN[number % every :: every]:
                bad = {**inner, key: value}
                try:
                    build({**whole, section: bad} if section else bad, "config.json")
                except BadFile as sentence:
                    assert "config.json" in str(sentence)


def test_what_the_family_adds_to_a_llama() -> None:
    """One look at what is new in each, in the catalogue's models."""

    def layers(name: str) -> list[Block]:
        return [block for block in build(catalog.model(name).config).blocks if block.stage == "layer"]

    def has(block: Block, *names: str) -> bool:
        return set(names) <= {op.name for op in block.ops}

    first, second = layers("longcat-flash-chat")
    assert (first.count, second.count) == (28, 28) and has(first, "experts") and not has(second, "experts")
    assert first.dims["num_experts_per_tok"] == 8 and first.dims["zero_expert_num"] == 256
    windowed = {"olmo-3-1125-32b": 48, "exaone-4.0-32b": 48, "k-exaone-236b-a23b": 36, "mimo-v2.5-pro": 60}
    windowed |= {"c4ai-command-a-03-2025": 48, "c4ai-command-r7b-12-2024": 24, "step-3.5-flash": 33}
    for name, count in windowed.items():
        writes = [(b.count, op.cache) for b in layers(name) for op in b.ops if op.kind == "kv_write"]
        assert sum(n for n, kept in writes if kept and kept.span == "window") == count, name
    shared = [b for b in layers("gemma-3n-e4b") if not has(b, "kv_cache_write")]
    assert sum(b.count for b in shared) == 15 and all(has(b, "laurel_left", "altup_predict") for b in shared)
    assert sum(b.count for b in layers("gemma-4-e2b") if not has(b, "kv_cache_write")) == 20


def test_cross_attention_layers_are_stored_and_not_run() -> None:
    model = build(catalog.model("llama-3.2-11b-vision").config)
    text, cross = (block for block in model.blocks if block.stage == "layer")
    assert cross.layers == tuple(range(3, 40, 5)) and text.count == 32
    for op in cross.ops:
        assert evaluate(op.work.flops, {"tokens": 8, "tp": 1, **cross.dims}) == 0
    assert any("cross-attention" in note for note in model.warnings)


def test_a_pattern_of_letters_places_the_windows() -> None:
    data = catalog.model("exaone-4.0-32b").config
    assert build(data | {"sliding_window": None}).spans.keys() == {""}
    local = next(b for b in build(data).blocks if b.stage == "layer" and 0 in b.layers)
    assert 3 not in local.layers and local.count == 48


def test_minicpm_v_is_the_decoder_of_its_version() -> None:
    data = catalog.model("minicpm-v-4_5").config
    names = {op.name for block in build(data).blocks for op in block.ops}
    assert "qk_norm" in names and "left out" in build(data).warnings[0]
    assert "qk_norm" not in {op.name for block in build(data | {"version": 2.6}).blocks for op in block.ops}
    with pytest.raises(BadFile, match=r"'version' may be 2\.5, 2\.6, 4\.0, 4\.5, not 9\.0"):
        build(data | {"version": 9})


def test_the_thinker_of_qwen_omni_is_what_is_read() -> None:
    config = catalog.model("qwen3-omni-30b-a3b").config
    assert parameters(build(config)) == pytest.approx(30.53e9, rel=0.001)
    assert "hidden_size" not in config
