"""A network described by hand in TOML: the same numbers as its config.json, and clear words about what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Ran, refused

from inferometer import BadFile, analyze

Run = Callable[..., Ran]
GQA = '{ block = "gqa", num_attention_heads = 4, num_key_value_heads = 2, head_dim = 16 }'
MLP = '{ block = "mlp", intermediate_size = 128 }'
TOP = "hidden_size = 64\nvocab_size = 100\n"
GOOD = f"{TOP}[[layers]]\nrepeat = 3\nblocks = [{GQA}, {MLP}]\n"


@pytest.fixture
def net(run: Run, tmp_path: Path) -> Callable[[str], Ran]:
    def analysed(text: str) -> Ran:
        path = tmp_path / "net.toml"
        path.write_text(text)
        return run("analyze", str(path), "--gpu", "h200", "--json")

    return analysed


def test_llama_by_hand_is_llama(tmp_path: Path) -> None:
    path = tmp_path / "llama.toml"
    path.write_text("""
        hidden_size = 4096
        vocab_size = 128256
        max_position_embeddings = 131072
        [[layers]]
        repeat = 32
        blocks = [
          { block = "gqa", num_attention_heads = 32, num_key_value_heads = 8, head_dim = 128 },
          { block = "mlp", intermediate_size = 14336 },
        ]
    """)
    mine, known = analyze(str(path), gpu="h200", batch_size=4), analyze("llama-3.1-8b", gpu="h200", batch_size=4)
    assert mine.model.params == known.model.params == 8030261248
    assert mine.metrics == known.metrics and mine.memory == known.memory
    assert mine.model.name == "llama"


def test_experts_windows_and_several_kinds_of_layer(net: Callable[[str], Ran]) -> None:
    window = GQA.replace("head_dim = 16", "head_dim = 16, window = 32")
    moe = '{ block = "moe", num_experts = 8, num_experts_per_tok = 2, moe_intermediate_size = 32 }'
    found = net(f"{TOP}[[layers]]\nrepeat = 3\nblocks = [{window}, {moe}]\n[[layers]]\nblocks = [{GQA}, {MLP}]\n").json
    assert found["model"]["layers"] == 4
    attention = 64 * (4 + 2 * 2) * 16 + 4 * 16 * 64
    sparse, dense = 8 * 3 * 64 * 32 + 8 * 64, 3 * 64 * 128
    norms = (2 * 4 + 1) * 64
    assert found["model"]["params"] == 2 * 64 * 100 + 4 * attention + 3 * sparse + dense + norms
    layer = 2 * 2 * 16 * 2
    assert found["memory"]["kv_cache_bytes"] == layer * (3 * 32 + 1 * (1024 + 128))


def test_latent_and_recurrent_blocks(net: Callable[[str], Ran]) -> None:
    mla = (
        '{ block = "mla", num_attention_heads = 4, q_lora_rank = 0, kv_lora_rank = 32, qk_nope_head_dim = 16, '
        "qk_rope_head_dim = 8, v_head_dim = 16 }"
    )
    sizes = "mamba_num_heads = 4, mamba_head_dim = 32, n_groups = 1, ssm_state_size = 16, conv_kernel = 4"
    mamba = f'{{ block = "mamba2", {sizes} }}'
    found = net(f"{TOP}[[layers]]\nblocks = [{mla}, {MLP}]\n[[layers]]\nblocks = [{mamba}]\n").json
    assert found["feasible"] and found["memory"]["kv_bytes_per_token"] == (32 + 8) * 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hidden_size = [", ("net.toml", "TOML")),
        ("", ("hidden_size",)),
        (TOP, ("[[layers]]",)),
        (GOOD.replace("vocab_size = 100", ""), ("vocab_size",)),
        (f"colour = 1\n{GOOD}", ("colour", "vocab_size")),
        (GOOD.replace('"gqa"', '"gqx"'), ("gqx", "gqa")),
        (GOOD.replace('"mlp"', "3"), ("'3'", "mlp")),
        (GOOD.replace("head_dim", "hed_dim"), ("hed_dim", "head_dim")),
        (GOOD.replace(", head_dim = 16", ""), ("gqa", "head_dim")),
        (GOOD.replace("head_dim = 16", "head_dim = 'x'"), ("head_dim", "'x'")),
        (GOOD.replace("head_dim = 16", "head_dim = -1"), ("head_dim", "-1")),
        (GOOD.replace("head_dim = 16", "head_dim = 0"), ("head_dim", "0")),
        (GOOD.replace("head_dim = 16", "head_dim = true"), ("head_dim", "True")),
        (GOOD.replace("head_dim = 16", "head_dim = [1]"), ("head_dim",)),
        (GOOD.replace("head_dim = 16", "head_dim = 16, bias = 'x'"), ("bias",)),
        (GOOD.replace("head_dim = 16", "head_dim = 16, qk_norm = 'zzz'"), ("zzz",)),
        (GOOD.replace("head_dim = 16", "head_dim = 16, index = 3"), ("index",)),
        (GOOD.replace("head_dim = 16", "head_dim = 16, span = 'zzz'"), ("span",)),
        (GOOD.replace("head_dim = 16", "head_dim = 16, window = 0"), ("window",)),
        (GOOD.replace("intermediate_size = 128", "intermediate_size = 128, window = 8"), ("window", "mlp")),
        (GOOD.replace("head_dim = 16", "head_dim = 16, hidden_size = 32"), ("hidden_size",)),
        (GOOD.replace("num_key_value_heads = 2", "num_key_value_heads = 3"), ("num_key_value_heads",)),
        (GOOD.replace("repeat = 3", "repeat = 0"), ("repeat",)),
        (GOOD.replace("repeat = 3", "repeat = 'x'"), ("repeat", "'x'")),
        (GOOD.replace("repeat = 3", "repeat = 100000000"), ("10,000",)),
        (GOOD.replace("repeat", "repeet"), ("repeet", "repeat")),
        (f"{TOP}layers = 3\n", ("layers",)),
        (f"{TOP}layers = [3]\n", ("layers 1",)),
        (f"{TOP}[[layers]]\nblocks = []\n", ("layers 1", "blocks")),
        (f"{TOP}[[layers]]\nblocks = ['gqa']\n", ("layers 1", "block")),
        (f"{TOP}[[layers]]\nblocks = [{{ intermediate_size = 8 }}]\n", ("layers 1", "block")),
        ("config = 3\n", ("config",)),
        ("[config]\n", ("net.toml", "empty")),
    ],
)
def test_what_is_wrong_is_said(net: Callable[[str], Ran], text: str, words: tuple[str, ...]) -> None:
    refused(net(text), *words)


def test_the_good_one_is_good(net: Callable[[str], Ran]) -> None:
    ran = net(GOOD)
    assert (ran.code, ran.err) == (0, "")


def test_a_block_has_the_network_s_width(tmp_path: Path) -> None:
    path = tmp_path / "net.toml"
    path.write_text(
        'hidden_size = 64\nvocab_size = 100\n[[layers]]\nblocks = [{ block = "mlp", '
        "intermediate_size = 128, hidden_size = 32 }]\n"
    )
    with pytest.raises(BadFile, match="hidden_size 32 is not the network's 64"):
        analyze(str(path))
