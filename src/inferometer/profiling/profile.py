"""Measuring from Python: the five jobs of ``inferometer profile`` as one function."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..base.errors import BadValue
from ..specs.arguments import check_names, signature
from ..specs.command_args import ProfileArgs
from .timer import OnProgress

if TYPE_CHECKING:
    from typing import Unpack

    from ..specs.keywords import ProfileKwargs


@signature(ProfileArgs)
def profile(
    model: str | None = None,
    *,
    kernels: bool = False,
    quick: bool = False,
    launches: bool = False,
    tables: str | None = None,
    output: str | None = None,
    budget: str | None = None,
    device: str = "cuda",
    kinds: str | None = None,
    gpu: str | None = None,
    say: Callable[[str], None] = print,
    progress: OnProgress | None = None,
    **kwargs: Unpack[ProfileKwargs],
) -> dict[str, Any]:
    """Measure this machine, or import other tools' tables; returns a summary, rows go to ``output``.

    - ``profile("qwen3-0.6b", device="cpu", prefill_max=128)``: the layers of a model, rows added in a folder
    - ``profile(kernels=True, budget="90s", kinds="linear")``: kernels by shape, into a file
    - ``profile(quick=True)``: how fast this machine is, as a file for ``profile`` of predictions
    - ``profile(launches=True)``: how fast the host launches kernels, as a file for ``host_profile``
    - ``profile(tables="gemm_perf.parquet", gpu="h200")``: tables of other tools (``--import``)
    """
    check_names(ProfileArgs, kwargs, "kernels", "quick", "launches", "tables", "output", "budget", "device", "kinds")
    options: dict[str, Any] = {name: value for name, value in kwargs.items() if value is not None}
    jobs = (("a model", model), ("kernels", kernels), ("quick", quick), ("launches", launches), ("tables", tables))
    given = [job for job, wanted in jobs if wanted]
    if len(given) != 1:
        raise BadValue(
            f"profile takes one of: a model, kernels, quick, launches or tables, not {' and '.join(given) or 'nothing'}"
        )
    if model:
        from .layers import profile_model

        return profile_model(
            model, output=output or ".", budget=budget, device=device, say=say, progress=progress, **options
        )
    if options:
        raise BadValue(f"{', '.join(sorted(options))} belongs to the layers of a model, not to {given[0]}")
    if kernels:
        from .campaign import profile_kernels

        return dict(profile_kernels(output or "kernels.csv", budget or "10m", device, say, progress, kinds))
    if quick:
        from .machine_speed import profile_quick

        return profile_quick(output or "machine.toml", device, say)
    if launches:
        from .machine_speed import profile_host

        return profile_host(output or "host.toml", device, say)
    from .import_tables import import_tables

    return dict(import_tables(str(tables), output, gpu=gpu, say=say))
