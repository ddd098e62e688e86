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
SLOW = ("h100", "silicon", "disaggregated")  # minutes: before a release; tests/validation has their figures
OPTIONAL = ("h100", "rtx3090")  # not part of the project
WHOLE = bool(os.environ.get("INFEROMETER_SLOW_TESTS"))


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


@pytest.mark.slow
@pytest.mark.parametrize("name", [*QUICK, *(SLOW if WHOLE else ())])
def test_the_page_is_what_the_code_gives(serving: ModuleType, name: str) -> None:
    rows = [serving.run(case) for case in serving.SETS[name]()]
    if name in OPTIONAL and not rows:
        pytest.skip(f"{name} is optional: without a licence it is not part of the project, and no claim rests on it")
    page = serving.accuracy_page.read()
    assert serving.section(name, rows) in page, f"python benchmarks/serving.py --set {name} --write"


@pytest.mark.slow
def test_every_run_of_the_sets_can_be_built(serving: ModuleType) -> None:
    """Requests of each kind are what the measurements say; nothing is simulated here."""
    counts = {name: len(list(cases())) for name, cases in serving.SETS.items() if name not in OPTIONAL}
    assert counts == {"h200": 4, "own": 30, "live": 8, "rtx4090": 1, "silicon": 1399, "disaggregated": 668}
    trace, limit = serving.requests(("shared", 100, 466, 247, ((5, 600), (10, 600)), 16))  # as a run of h100 has it
    assert len(trace) == 9000 and limit is None and set(trace.input_tokens.tolist()) == {566}
    assert trace.blocks is not None and trace.blocks[0] is trace.blocks[100], "after 10 × 10 the first comes again"
    assert trace.arrival_s is not None and (trace.arrival_s < 600.001).sum() == 3000
    case = next(iter(serving.silicon()))
    trace, limit = serving.requests(case.build)
    assert limit == 128 and len(trace) == 1280 and trace.input_tokens.min() >= 0.8 * 1024 - 1
    assert trace.input_tokens.max() <= 1024


def test_fp8_loads_are_run_with_the_settings_they_were_measured_with(serving: ModuleType) -> None:
    options = {case.name: case.options for case in serving.own() if "fp8" in case.name}
    assert {name: (told["quantization"], told["kv_cache_dtype"]) for name, told in options.items()} == {
        "llama-3.1-8b online fp8-r20": ("fp8", "fp8"),
        "llama-3.1-8b plan fp8-trace": ("fp8", "fp8"),
    }
    assert options["llama-3.1-8b online fp8-r20"]["enable_prefix_caching"]


def test_servers_are_started_as_their_scripts_say(serving: ModuleType) -> None:
    """One row of each kind, written here: the measurements themselves need not be at hand."""
    usual = {
        "source": "inferencex",
        "engine": "sglang",
        "engine_version": "0.5.9",
        "gpu": "b200",
        "model": "deepseek-ai/DeepSeek-R1",
        "precision": "fp4",
        "quantization": "nvfp4",
        "input_len": "1024",
        "output_len": "1024",
        "tensor_parallel_size": "8",
        "data_parallel_size": "1",
        "expert_parallel_size": "1",
        "max_concurrency": "8",
        "date": "2026-03-25",
    }

    def told(**words: str) -> dict[str, object]:
        return dict(serving.recipe({**usual, **words}))

    assert told()["scheduler_recv_interval"] == 10 and told(max_concurrency="64")["scheduler_recv_interval"] == 30
    assert "scheduler_recv_interval" not in told(gpu="h200")
    assert told(precision="fp8", quantization="fp8")["quantization"] == "fp8-block"
    engine = {"engine": "trtllm", "engine_version": "1.2.0rc6.post3", "date": "2026-02-06"}
    assert told(**engine)["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 3}
    assert told(**engine)["max_num_batched_tokens"] == 1152, "four tokens of each answer and one prompt, in 64s"
    assert "speculative_config" not in told(**{**engine, "engine_version": "1.2.0rc6.post2"})
    llama = {"engine": "trtllm", "model": "meta-llama/Llama-3.1-70B"}
    assert told(**llama, tensor_parallel_size="4")["batch_wait_timeout_iters"] == 20
    assert "batch_wait_timeout_iters" not in told(**llama)
    graphs = told(**llama)
    assert graphs["max_cudagraph_capture_size"] == 1024 and "max_prefill_cudagraph_capture_size" not in graphs
    made = told(source="aiconfigurator", engine="vllm")
    assert made == {"max_num_batched_tokens": 1024 + 8 + 1500, "async_scheduling": False}
    releases = {"0.19.0": "vllm@0.19", "0.11.2": "vllm@0.12", "nightly-5b8c": "vllm@0.19"}
    assert {
        release: serving.engine({**usual, "engine": "vllm", "engine_version": release}) for release in releases
    } == releases
    assert serving.engine({**usual, "engine_version": "0.5.6.post2"}) == "sglang@0.5.6"
    assert serving.engine({**usual, "engine_version": "", "date": "2025-11-02"}) == "sglang@0.5.5"


def disaggregated_row(**columns: str) -> dict[str, str]:
    """A row of DeepSeek-R1 in nvfp4 on B200 with TensorRT-LLM, as a list without workers has it."""
    return {
        "run": f"dsr1_{len(columns)}_{'_'.join(columns.values())}",
        "source": "inferencex",
        "engine": "trtllm",
        "engine_version": "0.8.1.post1",
        "gpu": "b200",
        "model": "deepseek-ai/DeepSeek-R1",
        "precision": "fp4",
        "input_len": "1024",
        "output_len": "1024",
        "date": "2026-01-29",
        "prefill_tensor_parallel_size": "4",
        "decode_tensor_parallel_size": "8",
        "prefill_expert_parallel_size": "4",
        "prefill_replicas": "",
        "decode_replicas": "",
        "prefill_data_parallel_size": "1",
        "decode_data_parallel_size": "1",
        "max_concurrency": "2192",
        "ttft_s": "2.825",
        "tpot_s": "0.0239",
        **columns,
    }


def test_disaggregated_servers_are_started_as_their_recipe_says(serving: ModuleType) -> None:
    row = disaggregated_row()
    options = serving.started([row])[row["run"]]
    prefill, decode = options["pools"]
    assert (prefill["replicas"], prefill["data_parallel_size"], prefill["max_num_batched_tokens"]) == (1, 4, 10240)
    assert (decode["replicas"], decode["data_parallel_size"], decode["max_num_seqs"]) == (2, 8, 128)
    assert prefill["async_scheduling"] is False and "speculative_config" not in decode
    drafting = disaggregated_row(max_concurrency="1214")
    pool = serving.started([drafting])[drafting["run"]]["pools"][1]
    assert pool["speculative_config"] == {"method": "mtp", "num_speculative_tokens": 2}
    assert pool["max_cudagraph_capture_size"] == 3 * pool["max_num_seqs"], "graphs hold drafts, too"
    unlisted = disaggregated_row(max_concurrency="77")
    assert serving.started([unlisted])[unlisted["run"]] == "no recipe fits"


def test_a_row_that_several_recipes_fit_has_none(serving: ModuleType) -> None:
    """With and without drafts the layout and the load are the same; the other run of that day tells them apart."""
    row = disaggregated_row(max_concurrency="90", tpot_s="0.005")
    assert serving.started([row])[row["run"]] == "2 recipes fit"
    workers = {"prefill_replicas": "1", "prefill_tensor_parallel_size": "1", "prefill_data_parallel_size": "4"}
    other = disaggregated_row(source="inferencex-workers", max_concurrency="90", decode_replicas="5", **workers)
    both = serving.started([row, other])
    assert "speculative_config" not in both[other["run"]]["pools"][1]
    assert both[row["run"]]["pools"][1]["speculative_config"]["num_speculative_tokens"] == 3
