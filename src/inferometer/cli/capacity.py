"""``inferometer simulate --find-capacity``: the highest rate at which what was promised holds."""

from __future__ import annotations

from typing import Any

from ..errors import BadValue
from .output import deliver, show_rich, table_csv
from .traffic import traffic


def capacity(model: str, gpu: str, goals: dict[str, float], ways: dict[str, Any], words: dict[str, Any],
             served: dict[str, Any], form: tuple[bool, bool, str | None]) -> int:  # fmt: skip
    """Search, then serve the requests once more at the rate that was found, and show both."""
    import msgspec

    from ..serving.capacity import find_capacity
    from .about import described
    from .progress import progress

    if not goals:
        raise BadValue("--find-capacity needs limits that must hold: --goodput ttft:500,tpot:50")
    if words["request_rate"] is not None:
        raise BadValue("--find-capacity looks for the rate itself: leave --request-rate away")
    seed = words["seed"]
    # what is made up gets arrivals, so that its burstiness is stretched to every rate; a trace has its own
    words["request_rate"] = 1.0 if words["trace"] is None else None
    trace, source = traffic(words, None)
    source = source.replace("at 1/s", "at the highest rate")
    result = {"schema": "inferometer.capacity/1", **described(model, gpu, words, source, len(trace))}
    with progress("trying rates", None, "rates") as reached:
        found = find_capacity(model, gpu, trace=trace, goodput=goals, share=ways["goodput_share"], jobs=ways["jobs"],
                              backend=ways["backend"], address=ways["backend_address"], seed=seed,
                              progress=lambda done, _: reached(done), **served, **words)  # fmt: skip
    result |= msgspec.to_builtins(found)
    result |= _at(model, gpu, trace, found, seed, goals, served, words)
    as_json, as_csv, output = form
    if as_json:
        deliver(msgspec.json.format(msgspec.json.encode(result), indent=1), output)
    elif as_csv:
        deliver(table_csv(result["tried"] or [{"request_rate": "", "good": "", "holds": ""}]), output)
    else:
        from ..views.serving import capacity as table

        show_rich(table(result), output)
    return 0 if found.request_rate else 1


def _at(model: str, gpu: str, trace: Any, found: Any, seed: int, goals: dict[str, float], served: dict[str, Any],
        words: dict[str, Any]) -> dict[str, Any]:  # fmt: skip
    """The benchmark's keys at the rate that was found."""
    from ..serving.capacity import stretched
    from ..serving.metrics import metrics
    from ..serving.simulate import simulate

    if not found.request_rate:
        return {"completed": 0}
    outcome = simulate(model, gpu, trace=stretched(trace, found.request_rate, seed), **served, **words)
    return metrics(outcome, goals)
