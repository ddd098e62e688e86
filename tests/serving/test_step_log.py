"""What servers write about their steps: every format read back, and lines that say nothing of a step left out."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT
from helpers.step_logs import forward_pass_lines, vllm_lines

from inferometer.base.errors import BadFile
from inferometer.serving.logged_step import LoggedStep
from inferometer.serving.metrics_page import distribution, read_metrics, read_pages, server_statistics
from inferometer.serving.step_log import read_step_log

assert ROOT.is_dir()
STEPS = [
    LoggedStep(512, 2, 128, 0, 0.0, 0.020),
    *(LoggedStep(0, 0, 0, 8, 8000.0 + 8 * k, 0.005) for k in range(3000)),
    LoggedStep(2048, 1, 0, 8, 40000.0, 0.060),
]


def written(path: Path, lines: object) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")  # type: ignore[call-overload]
    return str(path)


@pytest.mark.parametrize("traced", [False, True])
def test_forward_pass_records_come_back_as_they_were(tmp_path: Path, traced: bool) -> None:
    log = read_step_log([written(tmp_path / "fpm.jsonl", forward_pass_lines(STEPS, traced))])
    assert log.kind == "Dynamo's forward-pass metrics" and len(log) == len(STEPS)
    assert [step[:6] for step in log.steps] == [step[:6] for step in STEPS], "an idle engine's record is none"


def test_a_version_that_is_not_known_is_refused(tmp_path: Path) -> None:
    lines = ['{"version": 2, "wall_time": 0.1, "scheduled_requests": {}}']
    with pytest.raises(BadFile, match=r"line 1: forward-pass metrics of version 2 are not known; version 1 is"):
        read_step_log([written(tmp_path / "fpm.jsonl", lines)])


@pytest.mark.parametrize("v26", [True, False], ids=["from 0.26", "before"])
def test_iterations_of_vllm(tmp_path: Path, v26: bool) -> None:
    log = read_step_log([written(tmp_path / "log", vllm_lines(STEPS, 100_000, v26=v26))])
    assert log.kind == "vLLM's iterations" and log.engine == "vllm" and log.kv_cache_tokens == 100_000
    assert [step[:2] for step in log.steps] == [step[:2] for step in STEPS]
    assert log.steps[60].kv_usage == pytest.approx(0.084, abs=0.006) and not log.notes


def test_the_clock_of_the_log_shows_what_its_timings_leave_out(tmp_path: Path) -> None:
    """vLLM times the wait for a result: planning and launching are not in it."""
    log = read_step_log([written(tmp_path / "log", vllm_lines(STEPS, 100_000, untimed=0.001))])
    assert log.steps[5].seconds == pytest.approx(0.005, rel=0.1)
    assert "ms a step more than its timings" in log.notes[0]


def test_a_line_of_vllm_every_ten_seconds(tmp_path: Path) -> None:
    """The first has nothing to be compared with, the third has prompts in it, the last a batch that grew."""
    tail = "Waiting: 0 reqs, GPU KV cache usage: 12.0%, Prefix cache hit rate: 0.0%"
    rows = [(0.0, 800.0, 8), (0.0, 1600.0, 8), (900.0, 1500.0, 8), (0.0, 1600.0, 8), (0.0, 1600.0, 16)]
    lines = [
        f"INFO 11-18 10:00:{k}0 [loggers.py:310] Engine 000: Avg prompt throughput: {prompts} tokens/s, Avg generation "
        f"throughput: {tokens} tokens/s, Running: {running} reqs, {tail}"
        for k, (prompts, tokens, running) in enumerate(rows)
    ]
    log = read_step_log([written(tmp_path / "log", lines)])
    assert log.kind == "vLLM's lines of every 10 s" and len(log) == 2
    assert {(step.decode_seqs, step.seconds, step.steps, step.kv_usage) for step in log.steps} == {
        (8.0, 0.005, 2000, 0.12)
    }


def test_batches_of_sglang(tmp_path: Path) -> None:
    """A rate is a step's own where the line before is one of the same kind, and left work for it."""
    prompt = (
        "[2026-11-18 10:00:00 TP0] Prefill batch, #new-seq: 2, #new-token: {}, #cached-token: 64, token usage: 0.01, "
    )
    prompt += (
        "#running-req: 3, #queue-req: {}, #pending-token: 0, cuda graph: False, input throughput (token/s): {:.2f}"
    )
    decode = (
        "[2026-11-18 10:00:01 TP0] Decode batch, #running-req: {}, #token: {}, token usage: 0.02, cuda graph: True, "
    )
    decode += "gen throughput (token/s): {:.2f}, #queue-req: 0"
    lines = [
        "[2026-11-18 09:59:00 TP0] max_total_num_tokens=400000, chunked_prefill_size=8192",
        prompt.format(4096, 5, 100.0),  # after a pause
        prompt.format(8192, 0, 8192 / 0.2),
        prompt.format(300, 0, 3.0),  # nothing was left: time has passed
        decode.format(5, 5000, 4.0),  # prompts in between
        decode.format(5, 5200, 5 / 0.004),
        decode.format(40, 50000, 900.0),  # others joined
    ]
    log = read_step_log([written(tmp_path / "log", lines)])
    assert log.kind == "SGLang's batches" and log.engine == "sglang" and log.kv_cache_tokens == 400_000
    first, second = log.steps
    assert (first.prefill_tokens, first.prefill_seqs, first.prefill_cached) == (8192, 2, 64)
    assert first.seconds == pytest.approx(0.2, rel=1e-3)
    assert (second.decode_seqs, second.decode_kv, second.steps) == (5, 5100, 40)
    assert second.seconds == pytest.approx(0.004, rel=1e-3)


def test_a_file_without_steps_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"has no steps: a step log is a log of vLLM"):
        read_step_log([written(tmp_path / "log", ["nothing of the kind"])])


ITERATION = "Iteration(1): 0 context requests, 0 context tokens, {} generation requests, 8 generation tokens, "
ITERATION += "iteration elapsed time: {} ms, GPU KV cache usage: 1.0%"
RECORD = '{{"wall_time": {}, "scheduled_requests": {{"num_decode_requests": {}, "sum_decode_kv_tokens": {}}}}}'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (ITERATION.format("9" * 40, "4.0"), "step 1: no step of an engine has such numbers"),
        (ITERATION.format("8", "1.2.3"), "line 1: a number of the step cannot be read"),
        (RECORD.format("1e308", 4, 4000), "no step of an engine"),
        (RECORD.format(0.01, -5, 4000), "no step of an engine"),
        (RECORD.format(0.01, 1e300, 1), "no step of an engine"),
        (RECORD.format(0.01, 4, -1), "no step of an engine"),
        ('{"scheduled_requests":' + '{"a":' * 20_000, "line 1: a record of forward-pass metrics is not valid"),
    ],
)
def test_steps_that_cannot_be_are_one_sentence(tmp_path: Path, line: str, says: str) -> None:
    with pytest.raises(BadFile, match=says):
        read_step_log([written(tmp_path / "log", [line])])


def test_a_file_that_does_not_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inferometer.serving.step_log.MAX_WITHOUT", 2**21)
    with pytest.raises(BadFile, match="/dev/zero has no steps"):
        read_step_log(["/dev/zero"])


# ------------------------------------------------------------------ logs as they are found


def iterations(
    count: int, stamp: str = "", first: int = 0, start: float = 600.0, engine: str = "", each: float = 0.006
) -> list[str]:
    """Decode steps of vLLM before 0.26: 6 ms each, of which 2 ms are a wait that is timed. ``stamp`` is its format."""
    lines = []
    for number in range(first, first + count):
        now = start + each * number
        clock = f"{int(now // 3600):02d}:{int(now % 3600 // 60):02d}:{now % 60:09.6f}"
        stamped = f"2026-11-19T{clock}Z " if stamp == "fine" else ""
        lines.append(
            f"{stamped}({engine or 'EngineCore pid=1'}) INFO 11-19 {clock[:8]} [core.py:452] Iteration({number}): 0 "
            "context requests, 0 context tokens, 8 generation requests, 8 generation tokens, iteration elapsed time: "
            "2.00 ms"
        )
    return lines


def test_a_packed_log_that_is_cut_off_is_one_sentence(tmp_path: Path) -> None:
    packed = gzip.compress("\n".join(iterations(4000)).encode())
    path = tmp_path / "server.log.gz"
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadFile, match=r"server\.log\.gz cannot be read: it is broken gzip"):
        read_step_log([path])


@pytest.mark.parametrize("half", [0.3, 0.6, 0.99])
def test_half_of_a_last_line_is_left_out(tmp_path: Path, half: float) -> None:
    lines = list(forward_pass_lines(STEPS[:50], traced=False))
    path = tmp_path / "fpm.jsonl"
    path.write_text("\n".join(lines[:-1]) + "\n" + lines[-1][: int(half * len(lines[-1]))], encoding="utf-8")
    assert len(read_step_log([path])) == 49
    path.write_text(lines[-1][: int(0.99 * len(lines[-1]))], encoding="utf-8")
    with pytest.raises(BadFile, match="line 1: a record of forward-pass metrics is not valid"):
        read_step_log([path])


def test_lines_in_two_parts_of_a_log_are_read_once(tmp_path: Path) -> None:
    lines = iterations(3000)
    older = written(tmp_path / "server.log.1", lines[:2000])
    newer = written(tmp_path / "server.log", lines[1800:])
    both, whole = read_step_log([older, newer]), read_step_log([written(tmp_path / "whole.log", lines)])
    assert both.steps == whole.steps
    assert [note for note in both.notes if "200 lines stand in two parts of the log: they are read once" in note]
    turned = read_step_log([newer, older]).notes
    assert any(
        "server.log.1 begins before" in note and "give the oldest part of a log first" in note for note in turned
    )


def test_parts_of_a_log_may_lie_in_two_months(tmp_path: Path) -> None:
    older = [line.replace("11-19", "11-30") for line in iterations(50)]
    newer = [line.replace("11-19", "12-01") for line in iterations(50, first=50)]
    parts = [written(tmp_path / "a.log", older), written(tmp_path / "b.log", newer)]
    assert not any("oldest" in note for note in read_step_log(parts).notes)
    assert any("oldest" in note for note in read_step_log(parts[::-1]).notes)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [-3600.0, -30.0, 3600.0])
@pytest.mark.parametrize("stamp", ["", "fine"])
def test_a_clock_that_was_set_does_not_move_the_steps(tmp_path: Path, stamp: str, seconds: float) -> None:
    """As at the end of summer time. Taken as it is, it hid what the timings leave out, or made steps minutes long."""
    lines = iterations(3000, stamp, start=7200.0) + iterations(3000, stamp, 3000, start=7200.0 + seconds)
    log = read_step_log([written(tmp_path / "server.log", lines)])
    assert np.allclose([step.seconds for step in log.steps], 0.006, rtol=0.1) and not log.objection


def test_a_few_finely_stamped_lines_show_what_their_timings_leave_out(tmp_path: Path) -> None:
    log = read_step_log([written(tmp_path / "server.log", iterations(200, "fine"))])
    assert log.steps[100].seconds == pytest.approx(0.006, rel=0.02) and not log.objection


@pytest.mark.parametrize("lines", [iterations(200), [line.split("] ")[1] for line in iterations(3000)]])
def test_waits_without_a_clock_are_no_steps(tmp_path: Path, lines: list[str]) -> None:
    log = read_step_log([written(tmp_path / "server.log", lines)])
    assert "times only the wait for each result" in log.objection and log.notes == [log.objection]


def test_engines_in_one_log_are_kept_apart(tmp_path: Path) -> None:
    """Each has its own clock and its own KV cache; an engine that was started again begins with an empty one."""
    usage = "INFO 11-19 00:10:00 [loggers.py:310] Engine {:03d}: Avg prompt throughput: 9.0 tokens/s, Avg generation "
    usage += "throughput: 4.0 tokens/s, Running: 9 reqs, Waiting: 0 reqs, GPU KV cache usage: {}%, Prefix cache …"
    first = iterations(2000, engine="EngineCore_DP0 pid=7")
    second = iterations(2000, engine="EngineCore_DP1 pid=8", each=0.012)
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    again = iterations(5, engine="EngineCore_DP1 pid=9", start=900.0)
    log = read_step_log(
        [written(tmp_path / "server.log", [usage.format(0, 10.0), usage.format(1, 30.0), *mixed, *again])]
    )
    for name, seconds, share in (("engine 0 of process 7", 0.006, 0.1), ("engine 1 of process 8", 0.012, 0.3)):
        steps = [step for step in log.steps if step.stream == name]
        assert len(steps) == 2000 and {step.kv_usage for step in steps} == {share}
        assert steps[100].seconds == pytest.approx(seconds, rel=0.1)
    assert all(np.isnan(step.kv_usage) and step.seconds > 0.005 for step in log.steps[-5:])


def test_a_log_of_a_million_steps_says_how_much_of_it_was_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("inferometer.serving.step_log.MAX_STEPS", 100)
    log = read_step_log([written(tmp_path / "server.log", iterations(2000))])
    assert len(log) == 100 and "only the first 100 steps of the log were read" in log.notes


def test_pages_without_steps_say_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="has one page of /metrics: steps need a second one"):
        read_step_log([written(tmp_path / "one.txt", [FIRST])])
    busy = SECOND.replace('vllm:prompt_tokens_total{engine="0"} 1050', 'vllm:prompt_tokens_total{engine="0"} 9000')
    with pytest.raises(BadFile, match="has 2 pages of /metrics, but never decode steps alone between two of them"):
        read_step_log([written(tmp_path / "two.txt", [FIRST, busy])])


# ------------------------------------------------------------------ pages of /metrics

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 7.0
vllm:num_requests_running{{engine="1",model_name="m"}} 9.0
vllm:num_requests_waiting{{engine="0"}} 2.0
vllm:kv_cache_usage_perc{{engine="0"}} 0.25
vllm:kv_cache_usage_perc{{engine="1"}} 0.75
vllm:cache_config_info{{block_size="16",num_gpu_blocks="1000"}} 1.0
vllm:num_preemptions_total{{engine="0"}} {preempted}
vllm:prompt_tokens_total{{engine="0"}} {prompts}
vllm:generation_tokens_total{{engine="0"}} {tokens}
vllm:request_success_total{{finished_reason="stop"}} {requests}
vllm:request_success_total{{finished_reason="length"}} 1.0
vllm:inter_token_latency_seconds_bucket{{le="0.005"}} {low}
vllm:inter_token_latency_seconds_bucket{{le="0.01"}} {tokens}
vllm:inter_token_latency_seconds_bucket{{le="+Inf"}} {tokens}
vllm:inter_token_latency_seconds_count {tokens}
vllm:inter_token_latency_seconds_sum {gaps}
process_cpu_seconds_total 12.5
"""
FIRST = PAGE.format(preempted=1, prompts=1000, tokens=5000, requests=10, low=1000, gaps=40.0)
SECOND = PAGE.format(preempted=4, prompts=1050, tokens=9000, requests=30, low=2000, gaps=68.0)


def test_two_pages_say_what_happened_between_them() -> None:
    seen = server_statistics(read_metrics(FIRST), read_metrics(SECOND), 10.0)
    assert (seen.preemptions, seen.requests, seen.request_rate) == (3, 20, 2)
    assert (seen.prompt_tokens, seen.output_tokens) == (2.5, 200)
    assert (seen.running, seen.waiting, seen.kv_cache_usage, seen.kv_cache_tokens) == (16, 2, 0.5, 16000)
    assert seen.metrics["mean_itl_ms"] == pytest.approx(7.0) and seen.metrics["output_throughput"] == 400
    assert seen.metrics["median_itl_ms"] == pytest.approx(5 + 5 / 3), "2,000 of 4,000 gaps: 1,000 are below 5 ms"
    assert np.isnan(seen.queue_ms) and np.isnan(seen.prefix_cache_hit_rate), "the pages do not say it"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-3", "1e300", "abc"])
def test_a_counter_that_counts_nothing_is_not_there(value: str) -> None:
    page = read_metrics(
        f'vllm:generation_tokens_total {value}\nvllm:x_bucket{{le="²"}} 1\nvllm:prompt_tokens_total 5\n'
    )
    assert np.isnan(page.value("output_tokens")) and page.value("prompt_tokens") == 5 and not page.buckets


def test_a_histogram_without_its_sum_or_its_buckets() -> None:
    lines = 'vllm:x_bucket{{le="8"}} {0}\nvllm:request_prompt_tokens_count {0}\n'
    first, second = (read_metrics(lines.format(n) + f"vllm:request_prompt_tokens_sum {90 * n}\n") for n in (5, 10))
    assert distribution(first, second, "prompt_lengths").sample(4, np.random.default_rng(1)).tolist() == [90] * 4
    cut = read_metrics(lines.format(10))
    assert not distribution(first, cut, "prompt_lengths").number, "a mean of -90 tokens is none"


def test_a_server_that_was_started_again_says_nothing() -> None:
    seen = server_statistics(read_metrics(SECOND), read_metrics(FIRST), 10.0)
    assert np.isnan(seen.preemptions) and np.isnan(seen.requests) and not seen.metrics


def test_a_quantile_in_the_first_bucket_or_the_last_is_not_known() -> None:
    """vLLM's first bucket of times per token ends at 10 ms: a median of 7 was shown as 5.0."""
    text = 'vllm:inter_token_latency_seconds_bucket{{le="{}"}} {}\n'.format
    sums = "vllm:inter_token_latency_seconds_count {}\nvllm:inter_token_latency_seconds_sum {}\n".format
    before = text("0.01", 0) + text("0.025", 0) + text("+Inf", 0) + sums(0, 0)
    after = text("0.01", 80) + text("0.025", 98) + text("+Inf", 100) + sums(100, 0.7)
    seen = server_statistics(read_metrics(before), read_metrics(after), 10.0).metrics
    assert seen.keys() == {"mean_itl_ms", "p90_itl_ms"} and seen["mean_itl_ms"] == pytest.approx(7.0)
    assert seen["p90_itl_ms"] == pytest.approx(10 + 15 * 10 / 18)


def test_samples_have_the_mean_of_the_histogram() -> None:
    gained = distribution(read_metrics(FIRST), read_metrics(SECOND), "itl")
    drawn = gained._replace(total=4000 * 300.0, bounds=np.array([100.0, 1000.0, np.inf])).sample(
        500, np.random.default_rng(0)
    )
    assert drawn.mean() == pytest.approx(300, rel=0.02) and drawn.min() >= 1 and drawn.std() > 50


def test_pages_are_a_step_log(tmp_path: Path) -> None:
    assert len(list(read_pages((FIRST + SECOND).splitlines()))) == 2
    log = read_step_log([written(tmp_path / "pages", [FIRST + SECOND])])
    (step,) = log.steps
    assert log.kind == "pages of /metrics" and log.kv_cache_tokens == 16000
    assert (step.decode_seqs, step.seconds, step.steps) == (16, pytest.approx(0.007), 250)
    with pytest.raises(BadFile, match="has no metrics of vLLM or SGLang"):
        read_metrics("process_cpu_seconds_total 12.5\n")
