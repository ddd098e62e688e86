"""The page of accuracy says what the simulator gives for the servers that were measured."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from conftest import ROOT

QUICK = ("h200", "own", "rtx4090", "rtx3090")
SLOW = ("h100", "silicon", "disaggregated")  # half a minute, and minutes


@pytest.fixture(scope="module")
def serving() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("serving_benchmark", ROOT / "benchmarks" / "serving.py")
    assert spec and spec.loader
    sys.path.insert(0, str(ROOT / "benchmarks"))  # the recipes lie beside it
    module = importlib.util.module_from_spec(spec)
    sys.modules["serving_benchmark"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["serving_benchmark"]
    sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("name", [*QUICK, *SLOW])
def test_the_page_is_what_the_code_gives(serving: ModuleType, name: str) -> None:
    if not serving.MEASURED.is_dir():
        pytest.skip(f"{serving.MEASURED} is not at hand")
    if name in SLOW and not os.environ.get("INFEROMETER_SLOW_TESTS"):
        pytest.skip(f"{name} takes long; INFEROMETER_SLOW_TESTS=1 runs it")
    rows = [serving.run(case) for case in serving.SETS[name]()]
    page = serving.accuracy_page.read()
    assert serving.section(name, rows) in page, f"python benchmarks/serving.py --set {name} --write"


def test_every_run_of_the_sets_can_be_built(serving: ModuleType) -> None:
    """Requests of each kind are what the measurements say; nothing is simulated here."""
    if not serving.MEASURED.is_dir():
        pytest.skip(f"{serving.MEASURED} is not at hand")
    counts = {name: len(list(cases())) for name, cases in serving.SETS.items()}
    assert counts == {
        "h200": 4,
        "own": 15,
        "h100": 13,
        "rtx4090": 1,
        "rtx3090": 1,
        "silicon": 1399,
        "disaggregated": 668,
    }
    case = next(c for c in serving.h100() if "codegen" in c.name)
    trace, limit = serving.requests(case.build)
    assert len(trace) == 9000 and limit is None and set(trace.input_tokens.tolist()) == {566}
    assert trace.blocks is not None and trace.blocks[0] is trace.blocks[100], "after 10 × 10 the first comes again"
    assert trace.arrival_s is not None and (trace.arrival_s < 600.001).sum() == 3000
    case = next(iter(serving.silicon()))
    trace, limit = serving.requests(case.build)
    assert limit == 128 and len(trace) == 1280 and trace.input_tokens.min() >= 0.8 * 1024 - 1
    assert trace.input_tokens.max() <= 1024


def test_servers_are_started_as_their_scripts_say(serving: ModuleType) -> None:
    """One row of each kind, written here: the measurements themselves need not be at hand."""
    usual = {
        "source_kind": "inferencex_csv_dump",
        "backend": "sglang",
        "backend_version": "0.5.9",
        "system": "b200_sxm",
        "model_path": "deepseek-ai/DeepSeek-R1",
        "precision": "fp4",
        "quantization": "nvfp4",
        "isl": "1024",
        "osl": "1024",
        "tp_size": "8",
        "attention_dp_size": "1",
        "moe_ep_size": "1",
        "silicon_concurrency": "8",
        "measured_date": "2026-03-25",
    }

    def told(**words: str) -> dict[str, object]:
        return dict(serving.recipe({**usual, **words}))

    assert told()["scheduler_recv_interval"] == 10 and told(silicon_concurrency="64")["scheduler_recv_interval"] == 30
    assert "scheduler_recv_interval" not in told(system="h200_sxm")
    assert told(precision="fp8", quantization="fp8")["quantization"] == "fp8-block"
    engine = {"backend": "trtllm", "backend_version": "1.2.0rc6.post3", "measured_date": "2026-02-06"}
    assert told(**engine)["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}
    assert told(**engine)["max_num_batched_tokens"] == 1152, "four tokens of each answer and one prompt, in 64s"
    assert "speculative_config" not in told(**{**engine, "backend_version": "1.2.0rc6.post2"})
    llama = {"backend": "trtllm", "model_path": "meta-llama/Llama-3.1-70B"}
    assert told(**llama, tp_size="4")["batch_wait_timeout_iters"] == 20
    assert "batch_wait_timeout_iters" not in told(**llama)
    graphs = told(**llama)
    assert graphs["max_cudagraph_capture_size"] == 1024 and "max_prefill_cudagraph_capture_size" not in graphs
    made = told(source_kind="nvidia_gap_analysis", backend="vllm")
    assert made == {"max_num_batched_tokens": 1024 + 8 + 1500, "async_scheduling": False}
    releases = {"0.19.0": "vllm@0.19", "0.11.2": "vllm@0.12", "nightly-5b8c": "vllm@0.19"}
    assert {
        release: serving.engine({**usual, "backend": "vllm", "backend_version": release}) for release in releases
    } == releases
    assert serving.engine({**usual, "backend_version": "0.5.6.post2"}) == "sglang@0.5.6"
    assert serving.engine({**usual, "backend_version": "", "measured_date": "2025-11-02"}) == "sglang@0.5.5"


def disaggregated_row(**columns: str) -> dict[str, str]:
    """A row of DeepSeek-R1 in nvfp4 on B200 with TensorRT-LLM, as a list without workers has it."""
    return {
        "id": f"dsr1_{len(columns)}_{'_'.join(columns.values())}",
        "source_kind": "inferencex_csv_dump",
        "backend": "trtllm",
        "backend_version": "0.8.1.post1",
        "system": "b200_sxm",
        "model_path": "deepseek-ai/DeepSeek-R1",
        "precision": "fp4",
        "isl": "1024",
        "osl": "1024",
        "measured_date": "2026-01-29",
        "prefill_tp_size": "4",
        "decode_tp_size": "8",
        "prefill_moe_ep_size": "4",
        "prefill_num_workers": "",
        "decode_num_workers": "",
        "prefill_attention_dp_size": "1",
        "decode_attention_dp_size": "1",
        "silicon_concurrency": "2192",
        "silicon_ttft_ms": "2825",
        "silicon_tpot_ms": "23.9",
        **columns,
    }


def test_disaggregated_servers_are_started_as_their_recipe_says(serving: ModuleType) -> None:
    row = disaggregated_row()
    options = serving.started([row])[row["id"]]
    prefill, decode = options["pools"]
    assert (prefill["replicas"], prefill["data_parallel_size"], prefill["max_num_batched_tokens"]) == (1, 4, 10240)
    assert (decode["replicas"], decode["data_parallel_size"], decode["max_num_seqs"]) == (2, 8, 128)
    assert prefill["async_scheduling"] is False and "speculative_config" not in decode
    drafting = disaggregated_row(silicon_concurrency="1214")
    pool = serving.started([drafting])[drafting["id"]]["pools"][1]
    assert pool["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert pool["max_cudagraph_capture_size"] == 3 * pool["max_num_seqs"], "graphs hold drafts, too"
    unlisted = disaggregated_row(silicon_concurrency="77")
    assert serving.started([unlisted])[unlisted["id"]] == "no recipe fits"


def test_a_row_that_several_recipes_fit_has_none(serving: ModuleType) -> None:
    """With and without drafts the layout and the load are the same; the other run of that day tells them apart."""
    row = disaggregated_row(silicon_concurrency="90", silicon_tpot_ms="5.0")
    assert serving.started([row])[row["id"]] == "2 recipes fit"
    workers = {"prefill_num_workers": "1", "prefill_tp_size": "1", "prefill_attention_dp_size": "4"}
    other = disaggregated_row(
        source_kind="inferencex_db_dump", silicon_concurrency="90", decode_num_workers="5", **workers
    )
    both = serving.started([row, other])
    assert "speculative_config" not in both[other["id"]]["pools"][1]
    assert both[row["id"]]["pools"][1]["speculative_config"]["num_speculative_tokens"] == 3


@pytest.mark.slow
def test_disaggregated_rows_are_met(serving: ModuleType) -> None:
    """A few quick rows of the set; the whole of it is on the page."""
    if not serving.MEASURED.is_dir():
        pytest.skip(f"{serving.MEASURED} is not at hand")
    cases = [case for case in serving.disaggregated() if case.build[0] != "unknown" and case.build[-1] <= 16][::8]
    rows = [serving.run(case) for case in cases]
    errors = {m: sorted(abs(row.error(m) or 0.0) for row in rows) for m in ("ttft", "tpot")}
    assert len(rows) >= 10
    assert errors["ttft"][len(rows) // 2] < 0.4 and errors["tpot"][len(rows) // 2] < 0.15
