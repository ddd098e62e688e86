"""A calibration: what a user's own measurements say about predictions, in a file, and put into an engine."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..base.errors import BadFile, BadValue, abbreviate
from ..base.files import convert, input_path, read_toml
from ..base.input_file import is_input
from .arguments import flag
from .catalog import normalized
from .structs import Calibration, Engine, Hardware, Plan

FACTORS = {
    "prefill": "factor on prefill time",
    "decode": "factor on decode time",
    "mixed": "further factor on steps with prompts and decoding sequences",
    "eager": "further factor on decode steps outside of CUDA graphs",
    "host": "factor on the host's time to plan and launch a step",
}
_HOST_SECONDS = (
    "step_overhead",
    "step_floor",
    "step_floor_per_sequence",
    "step_floor_per_state_group",
    "host_launch",
)


def calibration(given: str | Calibration) -> Calibration:
    """The file that ``validate --write-calibration`` wrote, checked: ``calibration("h200.toml").decode``"""
    if isinstance(given, Calibration):
        return _checked(given, "calibration")
    if not isinstance(given, str):
        raise BadValue(f"`calibration` must be the name of a file, not {abbreviate(given)}")
    path = input_path(given)
    if not is_input(path):
        raise BadFile(f"no calibration file {abbreviate(given)}", field="calibration")
    content = read_toml(path)
    read = _checked(convert(content, Calibration, f"calibration {path}"), f"calibration {path}")
    if not {*FACTORS, "request"} & content.keys():
        raise BadFile(f"calibration {path} has none of {', '.join(FACTORS)} and request, so it would change nothing")
    return read


def _checked(calibration: Calibration, where: str) -> Calibration:
    for key in FACTORS:
        if not 0.01 <= getattr(calibration, key) <= 100:
            raise BadFile(f"{where}: {key} must be a factor from 0.01 to 100, not {getattr(calibration, key):g}")
    if not -60 <= calibration.request <= 60:
        raise BadFile(f"{where}: request must be from -60 to 60 s, not {calibration.request:g}")
    return calibration


def calibrated_engine(engine: Engine, calibration: Calibration) -> Engine:
    """The engine with the factors of a calibration, and its time per request."""
    host = calibration.host
    seconds = {name: getattr(engine, name) * host for name in _HOST_SECONDS} if host != 1 else {}
    return msgspec.structs.replace(
        engine,
        **seconds,
        launch={kind: each * host for kind, each in engine.launch.items()},
        prefill_factor=engine.prefill_factor * calibration.prefill,
        decode_factor=engine.decode_factor * calibration.decode,
        mixed_factor=engine.mixed_factor * calibration.mixed,
        eager_factor=engine.eager_factor * calibration.eager,
        request_overhead=max(0.0, engine.request_overhead + calibration.request),
    )


def mismatch_warnings(calibration: Calibration, model: str, device: Hardware, engine: Engine, plan: Plan) -> list[str]:
    """A warning where a calibration was made for another model, GPU, engine, version or precision than this plan's."""
    pairs = (
        (calibration.model, model),
        (calibration.gpu, device.name),
        (calibration.engine, engine.name),
        (calibration.version, engine.version),
        (calibration.precision, plan.formats),
    )
    if all(not was or normalized(was) == normalized(now) for was, now in pairs):
        return []
    made_for, planned = (" ".join(filter(None, side)) for side in zip(*_described(pairs), strict=True))
    return [f"the calibration was made for {made_for}, but this is {planned}"]


def _described(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """The two sides, both with what one of them does not say left out."""
    joints = ("", "on ", "with ", "", "in ")
    return [(joint + was, joint + now) if was else ("", "") for joint, (was, now) in zip(joints, pairs, strict=True)]


def as_toml(calibration: Calibration) -> str:
    """The text of its file, with what each figure means."""
    origin = {
        "model": calibration.model,
        "gpu": calibration.gpu,
        "engine": calibration.engine,
        "version": calibration.version,
        "precision": calibration.precision,
        "measured": calibration.measured,
    }
    lines = [
        f"# Correction of predictions, fitted to measurements; use it with {flag('calibration')}.",
        *(f"{key} = {getattr(calibration, key):.6g}  # {what}" for key, what in FACTORS.items()),
        f"request = {calibration.request:.6g}  # seconds added to every request",
        *(f"{key} = {_quoted(value)}" for key, value in origin.items()),
        f"requests = {calibration.requests}",
        f"steps = {calibration.steps}",
    ]
    for metric, errors in calibration.error.items():
        lines += ["", f"[error.{metric}]  # mean absolute relative error"]
        lines += [f"{key} = {value:.4g}" for key, value in errors.items()]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    """A string as TOML has it: JSON's, but for one character that only JSON allows."""
    return msgspec.json.encode(text).decode().replace("\x7f", "\\u007f")
