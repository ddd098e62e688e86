"""Other models, or other use cases, on the same machine: what is lost if it stays as it is, and what it would need."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ..base.errors import BadValue
from ..inference.advice import fits_with
from ..inference.analyze import model_info
from ..inference.request import Request
from ..specs import catalog
from .evaluation import METRICS, Reading, point, unusable
from .parameters import TOGETHER
from .sensitivity_report import Row
from .targets import row

Again = Callable[..., Request]  # the same words for another model, or with other words added
KEPT = ("ttft", "tpot")  # the performance that is to be kept


def why_not(request: Request) -> str | None:
    """Why a plan does not work, and what would; None if it does."""
    here = point(request)
    return unusable(request) or (None if here.fits else fits_with(request, here.bound_plan, here.held))


def models(request: Request, base: Reading, others: Iterable[str], again: Again) -> list[Row]:
    """The model itself, then the others beside its time to first token and time per token."""
    limits = {word: value for word in KEPT if (value := getattr(base, METRICS[word].field)) is not None}
    alone = ("flops", "memory_bandwidth", TOGETHER)
    rows = [_row(request, limits, alone=alone)]
    for name in others:
        other = again(name)
        if other.model.kind != request.model.kind:
            raise BadValue(
                f"--compare {request.model.name} with {other.model.name}: a {request.model.kind} and a "
                f"{other.model.kind} model have no time in common"
            )
        if other.model.name != request.model.name:
            rows.append(_row(other, limits, alone=alone))
    return rows


def usecases(request: Request, again: Again) -> list[Row]:
    """Every use case of the catalogue at its own lengths and batch, beside what its users expect."""
    found = []
    for name, case in catalog.usecases().items():
        other = again(request.model.name, usecase=name)
        found.append(_row(other, {"ttft": case.ttft * 1e3, "tpot": case.tpot * 1e3}, name, case.label))
    return found


def _row(
    request: Request,
    limits: dict[str, float],
    name: str = "",
    label: str = "",
    alone: tuple[str, ...] = (),
) -> Row:
    info = model_info(request)
    return row(request, limits, name or info.name, label or info.name, why_not(request), info.params, alone)


def words_of(text: str | Iterable[str]) -> list[str]:
    """Names of models: ``words_of("llama-2-7b,llama-2-70b")``"""
    pieces = text.split(",") if isinstance(text, str) else [str(word) for word in text]
    found = [piece.strip() for piece in pieces if piece.strip()]
    if not found:
        raise BadValue("--compare needs the names of models, with commas between")
    return list(dict.fromkeys(found))
