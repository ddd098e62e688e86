"""Hosts: names, files and figures of one's own; an engine's seconds on them; what was measured on the H200 machines."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import pytest

from inferometer import analyze
from inferometer.base.errors import BadFile, BadValue, UnknownName
from inferometer.costs.binding import step_seconds
from inferometer.costs.host import host_seconds, launch_seconds, state_groups
from inferometer.costs.step import Group, Step
from inferometer.inference.request import build_request
from inferometer.specs import catalog
from inferometer.specs.hosts import host, hosted_engine, is_machine

ROWS = Path(__file__).parents[2] / "benchmarks" / "data" / "h200_host.csv"


def test_a_name_a_file_and_figures_of_ones_own(tmp_path: Path) -> None:
    assert host().name == "server"
    assert host("server:launch=3e-6,slowdown=2").launch == 3e-6
    path = tmp_path / "mine.toml"
    path.write_text('label = "mine"\nlaunch = 5e-6\n[engines.vllm]\nstep_floor = 1e-3\n', encoding="utf-8")
    assert host(str(path)).engines["vllm"].step_floor == 1e-3
    path.write_text('label = "mine"\nlaunch = 5e-6\n[engines.vlm]\nstep_floor = 1e-3\n', encoding="utf-8")
    with pytest.raises(UnknownName, match=r"'vlm'; did you mean vllm"):
        host(str(path))
    path.write_text('label = "mine"\nlaunch = 5e-6\n[engines.vllm]\nstep_floor = 1e-3\n', encoding="utf-8")
    packed = tmp_path / "mine.toml.gz"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert is_machine(str(packed)) and host(str(packed)).engines == host(str(path)).engines
    assert not host(f"{path}:launch=4e-6").engines, "seconds that were seen belong to the figures they were seen with"


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("servre", UnknownName, "did you mean server"),
        ("", UnknownName, "unknown host ''"),
        ("server:launch=fast", BadValue, "must be a number, not 'fast'"),
        ("server:speed=2", UnknownName, "speed"),
        ("server:launch=6.4", BadValue, r"from 1e-7 to 0.01 s \(5 µs is 5e-6\), not 6.4"),
        ("server:slowdown=-1", BadValue, "factor from 0.05 to 100"),
        ("nowhere.toml", BadFile, "no host file .?nowhere.toml"),
    ],
)
def test_a_wrong_host_is_one_sentence(text: str, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        analyze("llama-3.1-8b", host_profile=text)


def test_launches_take_as_long_as_the_host_says_unless_the_engine_was_seen_there() -> None:
    vllm = catalog.engine("vllm")
    slow, fast = (hosted_engine(vllm, host(f"server:launch={seconds}")) for seconds in ("1e-5", "5e-6"))
    assert slow.launch["moe"] == pytest.approx(2 * fast.launch["moe"]) == pytest.approx(vllm.launches["moe"] * 1e-5)
    assert hosted_engine(vllm, host("server:slowdown=3")).step_floor == pytest.approx(3 * vllm.step_floor)
    assert hosted_engine(vllm, host("h200-vm")).launch["moe"] == 1.1e-3  # seen
    sglang = catalog.engine("sglang")
    assert hosted_engine(sglang, host("h200-vm")).launch["moe"] == pytest.approx(sglang.launches["moe"] * 8e-6)


def test_a_measured_machine_says_how_long_compiled_and_triton_launches_take(tmp_path: Path) -> None:
    path = tmp_path / "machine.toml"
    path.write_text(
        'label = "mine"\nlaunch = 5e-6\n[figures]\n'
        'triton_launch = { value = 9.1e-6, unit = "s", reference = 1.3e-5 }\n'
        "[engines.vllm]\nlaunch_factor = 0.5\n[engines.vllm.launch]\nprefill_attention = 1e-4\n",
        encoding="utf-8",
    )
    vllm = catalog.engine("vllm")
    there = hosted_engine(vllm, host(str(path))).launch
    assert there["moe"] == pytest.approx(vllm.launches["moe"] * 8e-6 * 0.7)  # Triton's launches, over the reference's
    assert there["linear"] == pytest.approx(vllm.launches["linear"] * 5e-6 * 0.5)
    assert there["kv_b_proj"] == pytest.approx(vllm.launches["kv_b_proj"] * 5e-6)
    assert there["prefill_attention"] == 1e-4


def test_the_table_of_launches_is_what_was_seen_on_the_machine_it_was_made_from() -> None:
    """vLLM's launches at 8 µs each are the seconds of h200-vm, within their rounding."""
    vllm, seen = catalog.engine("vllm"), host("h200-vm")
    for kind, seconds in seen.engines["vllm"].launch.items():
        assert vllm.launches[kind] * seen.launch == pytest.approx(seconds, rel=0.03), kind


def test_latent_attention_and_delta_rules_have_more_to_launch() -> None:
    def per_layer(model: str) -> float:
        request = build_request(model, "h200", host_profile="h200-vm")
        return sum(launch_seconds(request.model, request.engine)) / request.model.num_layers

    grouped, latent, delta = map(per_layer, ("qwen3-30b-a3b", "deepseek-v2-lite", "qwen3-next-80b-a3b"))
    assert grouped == pytest.approx(1.65e-3, rel=0.1)  # ms a layer: 1.6, 2.0 to 2.7 and 3.2 (benchmarks/data)
    assert 2.0e-3 < latent < 2.7e-3
    assert delta == pytest.approx(3.4e-3, rel=0.1)


def test_mamba_layers_launch_more_for_prompts_beside_decoding_sequences() -> None:
    """27 layers launch for 1.2 ms each (0.75 to 1.9 on five H200s), 0.47 more beside decodes."""
    request = build_request("nemotron-nano-9b-v2", "h200", engine="vllm@0.25", host_profile="h200-vm")
    plan = request.bind()
    prompt, decodes = Group(1, 256), Group(8, 1, 500, 1, True)
    alone, beside, decoding = (
        step_seconds(plan, Step(groups)) for groups in ((prompt,), (prompt, decodes), (decodes,))
    )
    assert alone == pytest.approx(37.6e-3, rel=0.03)
    assert beside - alone == pytest.approx(27 * 0.47e-3, rel=0.05)
    assert decoding == pytest.approx(5.87e-3, rel=0.03), "captured whole: nothing is launched"
    nine, sixteen = (step_seconds(plan, Step((Group(n, 1, 500, 1, True),))) for n in (9, 16))
    assert nine == pytest.approx(6.63e-3, rel=0.03) and sixteen - nine < 0.1e-3, "a graph of 16 updates 16 states"


@pytest.mark.parametrize(
    ("model", "groups"), [("nemotron-nano-9b-v2", 7), ("bamba-9b", 10), ("falcon-h1-34b", 1), ("qwen3-8b", 0)]
)
def test_groups_of_recurrent_layers_are_planned_one_by_one(model: str, groups: int) -> None:
    """vLLM's groups are as large as that of the layers which attend; its log names 599 / 8 blocks for the first."""
    request = build_request(model, "h200", engine="vllm@0.25", host_profile="h200-vm")
    assert state_groups(request.model.blocks) == groups
    step = Step((Group(1, 1, 100, 1, True),))
    sums = {**step.sums(request.model.spans), "throttle": 0.0}
    floor = host_seconds(request.model, request.engine, sums, 0.0) - request.engine.step_overhead
    assert floor == pytest.approx(1.968e-3 + groups * 0.2e-3)


@pytest.mark.slow
def test_steps_with_and_without_asynchronous_scheduling() -> None:
    """Llama-3.1-8B on an H200: planning hides behind the step, or is added to it; two releases of vLLM agree."""
    with ROWS.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["model"] == "llama-3.1-8b" and row["decode_step_ms"]]
    assert {row["version"] for row in rows} == {"0.20.2", "0.25.1"}
    for row in rows:
        version = "0.25" if row["async_scheduling"] == "on" else "0.13"  # not yet asynchronous
        report = analyze(
            "llama-3.1-8b",
            gpu="h200",
            engine=f"vllm@{version}",
            host_profile="h200-vm",
            batch_size=int(row["batch"]),
            input_len=128,
            output_len=80,
        )
        bound = 0.07 if row["async_scheduling"] == "on" else 0.23  # two machines differ by a sixth without it
        assert report.metrics.tpot_ms == pytest.approx(float(row["decode_step_ms"]), rel=bound), row


def test_a_mixtures_first_token_depends_on_the_gpu() -> None:
    def ttft(gpu: str) -> float:
        value = analyze("qwen3-30b-a3b", gpu=f"{gpu}:memory=2e11").metrics.ttft_ms
        assert value is not None
        return value

    b200, h200, h100, a100, l40s = map(ttft, ("b200", "h200", "h100-sxm", "a100-sxm-80gb", "l40s"))
    assert b200 < h200 <= h100 <= a100 <= l40s and l40s > 1.2 * h200
    assert ttft("tpu-v7") < 2 * b200, "no kernel is launched on a TPU"


def test_the_report_names_its_host() -> None:
    assert analyze("llama-3.1-8b").to_dict()["engine"]["host"] == "server"
    assert analyze("llama-3.1-8b", host_profile="h200-vm").to_dict()["engine"]["host"] == "h200-vm"
    assert analyze("llama-3.1-8b", engine="roofline").to_dict()["engine"]["host"] == ""


def test_a_rounded_cache_is_more_launches_beyond_graphs() -> None:
    plain, rounded, other = (
        build_request("llama-3.1-8b", "h200", engine=engine, host_profile="h200-vm", kv_cache_dtype=dtype).bind()
        for engine, dtype in (("vllm@0.25", "bf16"), ("vllm@0.25", "fp8"), ("sglang", "fp8"))
    )
    before, after = (launch_seconds(one.model, one.engine) for one in (plain, rounded))
    assert after.in_graphs - before.in_graphs == pytest.approx(32 * (22 * 8e-6 - 2.5e-5))
    assert after.between_pieces == before.between_pieces
    assert other.engine.launch["kv_write"] == other.engine.launch["other"]  # nothing is known of other engines
