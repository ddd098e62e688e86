"""Joules per output token against ml-energy's measured servers (H100, vLLM 0.11.1), as Markdown.

    INFEROMETER_SHARED=DIR python benchmarks/energy.py          # the table of docs/accuracy/energy.md
    INFEROMETER_SHARED=DIR python benchmarks/energy.py --fit    # the shares of data/power.toml, chosen anew

Two shares were chosen on the chat runs of some models; whole models and all other tasks were held out before. A run
is estimated as a batch of its mean size and answers. Prompt lengths are not in the data: text is guessed (`PROMPTS`),
tokens of pictures follow from what the models make of a size that is assumed (`seen_as`).
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Iterable, Iterator
from math import log, log1p
from typing import NamedTuple

from measurements import elsewhere

from inferometer.base.errors import InferometerError
from inferometer.costs.power import Activity, PowerModel, power_model
from inferometer.inference.latency import decode_activity, frontend_seconds, prefill_activity
from inferometer.inference.request import Request, build_request
from inferometer.inference.workload import batch_shape_of
from inferometer.specs import catalog

FILE = elsewhere("measured/public/ml_energy_llm.csv")  # optional: the leaderboard's files have no licence
PROMPTS = {"lm-arena-chat": 400, "gpqa": 250, "sourcegraph-fim": 1500, "image-chat": 100, "video-chat": 50}
# Vision Arena makes pictures at most 1,024 pixels long (FastChat, `resize_image_and_…_in_bytes`); 4:3 assumed.
PICTURE = (768, 1024)
# Videos are cut to 32 frames and written at 30 a second (ml-energy/benchmark, mlenergy/llm/datasets.py). Qwen3-VL takes
# two a second of them, but at least four (transformers, Qwen3VLVideoProcessor); Qwen3-Omni takes all, as its processor
# (Qwen2VLVideoProcessor) samples none by default. Two frames are one layer of patches. Their size: 540 x 960 assumed.
FRAME, FRAMES, LEAST_FRAMES = (540, 960), 32, 4
TEXT = ("lm-arena-chat", "gpqa", "sourcegraph-fim")
CHOSEN_ON = "lm-arena-chat"
MODELS_APART = ("Qwen3-14B", "gemma-3-27b", "70B", "Maverick", "gpt-oss-20b", "VL-32B")  # parts of their names
# Every request asks for top_p = 0.95, for which vLLM 0.11.1 sorts the whole vocabulary in PyTorch. Seconds of a logit,
# from how steps of Llama-3.1-8B, Qwen3-8B and gemma-3-12b grow with the batch: 0.20 to 0.23 ns in runs not held out
# (three others of these give 0.00, 0.31 and 0.34 ns).
SORT = 0.22e-9


class Run(NamedTuple):
    """A measured server, and what a GPU of it does for one output token as we predict it."""

    model: str
    task: str
    gpus: int
    joules: float  # measured, of one output token on all GPUs
    seconds: float  # measured, of one output token of the server
    prompts: Activity
    answers: Activity

    @property
    def predicted_seconds(self) -> float:
        """Of one output token, from our time alone."""
        return float(self.prompts.seconds + self.answers.seconds)

    @property
    def kept_apart(self) -> bool:
        """Whether no share was chosen on it."""
        return self.task != CHOSEN_ON or any(name in self.model for name in MODELS_APART)

    def predicted_joules(self, model: PowerModel, scale: float = 1.0) -> float:
        """Of one output token on all GPUs, where everything takes ``scale`` times our seconds."""
        phases = [a._replace(seconds=a.seconds * scale, busy=a.busy * scale) for a in (self.prompts, self.answers)]
        return self.gpus * sum(float(model.watts(phase) * phase.seconds) for phase in phases)

    def error(self, model: PowerModel, ours: bool) -> float:
        """Of joules per output token: from our time, or at the measured throughput."""
        scale = 1.0 if ours else self.seconds / self.predicted_seconds
        return self.predicted_joules(model, scale) / self.joules - 1


def runs(longer: float = 1.0) -> Iterator[Run]:
    """The runs whose models are in the catalogue, with prompts so many times the guess."""
    assert FILE is not None
    with FILE.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            try:
                request = _request(row, longer)
            except InferometerError:
                continue
            yield _run(row, request)


def seen_as(model: str, task: str) -> tuple[tuple[int, int, int] | None, int]:
    """Pictures of a request where the catalogue has the model's tower, and tokens of pictures where it has not.

    ``seen_as("google/gemma-3-12b-it", "image-chat")  # (1, 768, 1024), 0``
    """
    if task not in ("image-chat", "video-chat"):
        return None, 0
    omni, video = "Omni" in model, task == "video-chat"
    count = (FRAMES if omni else LEAST_FRAMES) // 2 if video else 1
    height, width = FRAME if video else PICTURE
    if "Llama-4" in model:  # 3 x 4 tiles of 336 and one of the whole, 144 tokens each
        return None, 13 * 144
    if omni:  # as in Qwen3-VL: a token for 32 x 32 pixels
        return None, count * round(height / 32) * round(width / 32)
    return (count, height, width), 0


def _request(row: dict[str, str], longer: float) -> Request:
    """The server as a plan: its GPUs share layers, or experts; 0.14 schedules as theirs does, which set that flag."""
    expert_parallel = int(row["expert_parallel"]) > 1
    name, quantization = row["model_id"], None
    if row["weight_precision"] == "fp8":
        name = name.removesuffix("-FP8")
        quantization = "fp8-block" if name.startswith("Qwen/") else "fp8"  # as their config.json says
    pictures, tokens = seen_as(row["model_id"], row["task"])
    if pictures:
        pictures = (round(longer * pictures[0]), *pictures[1:])
    return build_request(
        name,
        "h100-sxm",
        engine="vllm@0.14",
        tensor_parallel_size=int(row["num_gpus"]),
        enable_expert_parallel=expert_parallel,
        quantization=quantization,
        batch_size=max(1, round(float(row["avg_batch_size"]))),
        images=pictures,
        input_len=round(longer * (PROMPTS[row["task"]] + tokens)),
        output_len=round(float(row["avg_output_len"])),
        max_num_seqs=4096,
        max_num_batched_tokens=8192,
    )


def _run(row: dict[str, str], request: Request) -> Run:
    bound_plan, work = request.bind(), request.workload
    shape = batch_shape_of(bound_plan, work)
    tokens = work.batch_size * work.output_len
    sorting = SORT * request.model.sizes["vocab_size"] * work.batch_size
    step = decode_activity(bound_plan, shape).plus(Activity(sorting, sorting, 0.0, 0.0))
    waiting = Activity(frontend_seconds(bound_plan), 0.0, 0.0, 0.0)
    nothing = Activity(0.0, 0.0, 0.0, 0.0)
    return Run(
        model=row["model_id"],
        task=row["task"],
        gpus=int(row["num_gpus"]),
        joules=float(row["energy_per_token_joules"]),
        seconds=1 / float(row["output_throughput_tokens_per_sec"]),
        prompts=nothing.plus(waiting.plus(prefill_activity(bound_plan, shape)), 1 / tokens),
        answers=nothing.plus(step, (work.output_len - 1) / tokens),
    )


# ------------------------------------------------------------------ the table


def _groups(all_runs: list[Run]) -> dict[str, list[Run]]:
    apart = [run for run in all_runs if run.kept_apart]
    unseen = [run for run in apart if run.task in TEXT and any(name in run.model for name in MODELS_APART)]
    return {
        "chosen on: chat, 10 models": [run for run in all_runs if not run.kept_apart],
        "**held out, text**": [run for run in apart if run.task in TEXT],
        "models held out, text": unseen,
        "reasoning (gpqa)": [run for run in apart if run.task == "gpqa"],
        "code (sourcegraph-fim)": [run for run in apart if run.task == "sourcegraph-fim"],
        "images (size assumed)": [run for run in apart if run.task == "image-chat"],
        "videos (size assumed)": [run for run in apart if run.task == "video-chat"],
        "**all held out**": apart,
    }


def _cell(errors: Iterable[float]) -> str:
    """``10.0%, p90 28.8%, bias +1.1%``: of the absolute errors, and the median error."""
    each = list(errors)
    absolute = sorted(map(abs, each))
    ninety = absolute[min(len(each) - 1, int(0.9 * len(each)))]
    return f"{statistics.median(absolute):.1%}, p90 {ninety:.0%}, bias {statistics.median(each):+.1%}"


def markdown() -> str:
    """The table of docs/accuracy/energy.md."""
    model = power_model(catalog.hardware("h100-sxm"))
    assert model is not None
    lines = [
        "| runs | | J/token at the measured throughput | J/token, all predicted | tokens/s | at a constant 700 W |",
        "|---|---|---|---|---|---|",
    ]
    for name, group in _groups(list(runs())).items():
        cells = (
            _cell(run.error(model, ours=False) for run in group),
            _cell(run.error(model, ours=True) for run in group),
            _cell(run.seconds / run.predicted_seconds - 1 for run in group),
            _cell(run.gpus * model.power * run.predicted_seconds / run.joules - 1 for run in group),
        )
        lines.append(f"| {name} | {len(group)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def markdown_models() -> str:
    """The same for every model and task that was held out: median absolute error, and median error."""
    model = power_model(catalog.hardware("h100-sxm"))
    assert model is not None
    by_model: dict[tuple[str, str], list[Run]] = {}
    for run in runs():
        if run.kept_apart:
            by_model.setdefault((run.model.rpartition("/")[2], run.task), []).append(run)
    lines = [
        "| model | task | runs | GPUs | J/token at the measured throughput | J/token | tokens/s |",
        "|---|---|" + "---:|" * 5,
    ]
    for (name, task), group in sorted(by_model.items()):
        cells = (
            [run.error(model, ours=False) for run in group],
            [run.error(model, ours=True) for run in group],
            [run.seconds / run.predicted_seconds - 1 for run in group],
        )
        gpus = ", ".join(str(number) for number in sorted({run.gpus for run in group}))
        errors = (f"{statistics.median(map(abs, each)):.0%}, bias {statistics.median(each):+.0%}" for each in cells)
        lines.append(f"| {name} | {task} | {len(group)} | {gpus} | {' | '.join(errors)} |")
    return "\n".join(lines)


def sections() -> dict[str, str]:
    """What stands between the page's markers, by name."""
    return {"energy": markdown(), "energy-models": markdown_models()}


def prompt_effect() -> str:
    """How far the guess of the prompts matters: the median change of joules where they are twice as long."""
    model = power_model(catalog.hardware("h100-sxm"))
    assert model is not None
    changes: dict[str, list[float]] = {}
    for once, twice in zip(runs(), runs(2.0), strict=True):
        change = twice.predicted_joules(model) / once.predicted_joules(model) - 1
        changes.setdefault(once.task, []).append(change)
    return ", ".join(f"{task} {statistics.median(each):+.0%}" for task, each in changes.items())


# ------------------------------------------------------------------ the choice


def fitted(chosen_on: list[Run]) -> PowerModel:
    """The shares of busy and compute that fit the runs best: a search by halving steps, outliers counting less."""
    model = power_model(catalog.hardware("h100-sxm"))
    assert model is not None

    def loss(busy: float, compute: float) -> float:
        other = model._replace(busy=busy * model.power, compute=compute * model.power)
        return sum(log1p((log(1 + run.error(other, ours=False)) / 0.1) ** 2) for run in chosen_on)

    best, step = (0.4, 1.5), 0.32
    while step > 0.004:
        around = [(best[0] + x * step, best[1] + 2 * y * step) for x in (-1, 0, 1) for y in (-1, 0, 1)]
        better = min((point for point in around if min(point) > 0), key=lambda point: loss(*point))
        step, best = (step / 2, best) if better == best else (step, better)
    return model._replace(busy=best[0] * model.power, compute=best[1] * model.power)


if __name__ == "__main__":
    if FILE is None:
        sys.exit("ml-energy's runs are not part of the project: INFEROMETER_SHARED names a folder that has them")
    if "--fit" in sys.argv:
        shares = fitted([run for run in runs() if not run.kept_apart])
        print(f"busy {shares.busy / shares.power:.3f}, compute {shares.compute / shares.power:.2f}")
    else:
        print(markdown(), markdown_models(), sep="\n\n")
        print("\nprompts twice as long:", prompt_effect())
