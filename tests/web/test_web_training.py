"""The Training tab: what the server answers is the command's report, and what is drawn is the answer."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ran
from helpers.browser import Opened
from helpers.web_server import Server

from inferometer.specs.arguments import arguments
from inferometer.specs.train_args import TrainArgs
from inferometer.web.answers import JsonAnswer
from inferometer.web.catalogue import control_label, training_controls
from inferometer.web.endpoints import answer

STEP = {"pipeline_parallel_size": 4, "zero": 1, "data_parallel_size": 2, "global_batch_size": 16}


def trained(training: Any, **plan: Any) -> JsonAnswer:
    return answer("train", json.dumps({"plan": plan, "training": training}).encode())


def test_it_is_the_report_of_the_command(run: Callable[..., Ran]) -> None:
    status, body = trained(STEP, model="smollm2-360m")
    report = json.loads(body)
    line = shlex.split(report.pop("command"))
    assert status == 200 and line[:3] == ["inferometer", "train", "smollm2-360m"]
    assert report.pop("title").startswith("smollm2-360m") and len(report.pop("peaks")) == 4
    expected = run(*line[1:], "--json", "--timeline").json
    expected.pop("run"), report.pop("run")
    assert report == expected


def test_a_layout_that_does_not_fit_is_a_result() -> None:
    status, body = trained({"data_parallel_size": 2}, model="llama-3.1-8b")
    report = json.loads(body)
    assert status == 200 and not report["feasible"] and "fits with -tp 2" in report["reason"]
    assert report["timeline"]["stages"]


@pytest.mark.parametrize(
    ("training", "control", "sentence"),
    [
        ({"zero": "1"}, "zero", "ZeRO stage must be a whole number"),
        ({"hf_token": "secret"}, "hf_token", "unknown key of the training"),
        ({"precision": "fp9"}, None, "unknown Precision 'fp9'"),
        ({"engine": "../../etc/passwd"}, "engine", "unknown engine"),
        ({"global_batch_size": 9, "data_parallel_size": 4}, "global_batch_size", "Global batch 9 cannot be split"),
        ([], None, "training is an object"),
    ],
)
def test_mistakes_are_sentences_about_a_control(training: Any, control: str | None, sentence: str) -> None:
    status, body = trained(training)
    refused = json.loads(body)
    assert status == 400 and sentence in refused["error"]
    assert control is None or refused["control"] == control


@pytest.mark.slow
def test_every_argument_has_a_control_but_secrets() -> None:
    controls = {control.name: control for control in training_controls()}
    assert set(arguments(TrainArgs)) - set(controls) == {"hf_token"}
    assert all(control.label == control_label(name) or name in ("zero",) for name, control in controls.items())
    for name, control in controls.items():
        for choice in control.choices if control.kind == "choice" and name not in ("recompute_method",) else ():
            value = int(choice) if choice.isdecimal() else choice
            extra = {"context_parallel_size": 2} if name == "cp_comm_type" else {}
            assert trained({name: value, **extra}, model="gpt2").status == 200, (name, choice)


# ------------------------------------------------------------------ in a browser


@pytest.mark.slow
def test_the_tab_follows_its_form_and_the_address_keeps_it(opened: Opened) -> None:
    page = opened("?tab=training&model=smollm2-360m&train_pipeline_parallel_size=2&train_global_batch_size=8")
    page.wait_for_selector("#chart-schedule svg text")
    assert page.inner_text("#chart-schedule h3") == "Schedule: 2 stages, 8 micro-batches"
    report = opened.server.post(
        "/api/train",
        {
            "plan": {"model": "smollm2-360m", "gpu": "h100-sxm"},
            "training": {"pipeline_parallel_size": 2, "global_batch_size": 8},
        },
    ).json
    assert page.inner_text("[data-figure=MFU] .value") == f"{report['model_flops_utilization']:.1%}"
    assert "kept for the backward pass" in page.inner_text("#chart-training-memory .note")
    box = page.query_selector("#chart-schedule svg").bounding_box()
    page.mouse.move(box["x"] + 70, box["y"] + 15)
    assert "forward of micro-batch 0" in page.inner_text(".pointed")
    page.select_option("#train-stage", "1")
    page.wait_for_function("() => location.search.includes('train_stage=1')")
    page.fill("#train_interleave", "4")
    page.press("#train_interleave", "Enter")
    page.wait_for_function("() => document.querySelector('#chart-schedule h3').textContent.includes('4 virtual')")
    assert "train_interleave=4" in page.url
    page.fill("#train_global_batch_size", "0")
    page.press("#train_global_batch_size", "Enter")
    page.wait_for_selector(".view-training .wrong:visible")


@pytest.mark.slow
def test_what_would_fit_is_one_click_away(opened: Opened) -> None:
    page = opened("?tab=training&train_data_parallel_size=2", width=390, scheme="dark")
    page.wait_for_selector(".view-training .problem .apply")
    page.click(".view-training .problem .apply >> nth=0")
    page.wait_for_function("() => !document.querySelector('.view-training .problem')")
    assert "train_tensor_parallel_size=2" in page.url
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.slow
def test_a_report_in_one_file_opens_without_a_server(opened: Opened, run: Callable[..., Ran], tmp_path: Path) -> None:
    path = tmp_path / "training.html"
    assert run("train", "smollm2-360m", "-pp", "2", "--global-batch-size", "40", "--html", path).code == 0
    page = opened(path.as_uri())
    page.wait_for_selector("#chart-schedule svg text")
    assert "32 more" in page.text_content("#chart-schedule svg")
    assert page.query_selector("#tab-graph") is None and page.query_selector("#train_zero") is None
    assert all(url.startswith(("file:", "data:", "blob:")) for url in opened.asked)


@pytest.mark.slow
def test_the_server_answers_it_within_its_limits(server: Server) -> None:
    reply = server.post("/api/train", {"plan": {"model": "gpt2"}, "training": {"data_parallel_size": 2}})
    assert reply.status == 200 and reply.json["plan"]["gpus"] == 2
    assert "/api/train" in server.get("/schema").json["paths"]
