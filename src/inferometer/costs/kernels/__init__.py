"""Where kernel times come from: a chain of sources, the best known first, each with its origin."""

from __future__ import annotations

from collections.abc import Mapping

from ...specs.structs import Engine, Hardware
from ..parallelism import Place
from .delta_rule import delta_rules
from .lookup import Formats, kernel_sources
from .registry import KernelProfile, Reach, donors, installed, peak_flops, relative_reach
from .source import FUSED, LINKED, ORIGINS, Source, Terms, assumed, given, ideal, linked, rounding

__all__ = [
    "FUSED",
    "LINKED",
    "ORIGINS",
    "Formats",
    "KernelProfile",
    "Source",
    "Terms",
    "assumed",
    "donors",
    "given",
    "ideal",
    "installed",
    "linked",
    "peak_flops",
    "relative_reach",
    "rounding",
    "sources",
]


def sources(
    engine: Engine,
    efficiency: dict[str, float] | None = None,
    places: Mapping[str, Place] | None = None,
    device: Hardware | None = None,
    formats: Formats | None = None,
    profile: KernelProfile | None = None,
    changed: Hardware | None = None,
) -> tuple[Source, ...]:
    """The sources of a plan, best first: ``sources(catalog.engine("vllm"))[-1].origin  # "assumed"``

    ``changed``: the device with other figures than its data sheet's, which ``device`` has.
    """
    if efficiency:
        return (given(**efficiency, places=places),)
    if not engine.kernels:
        return (ideal(),)
    chain: tuple[Source, ...] = ()
    if places and device:
        chain += (linked(places, device.architecture, engine.name),)
    if device and formats and engine.profile:
        chain += kernel_sources(
            device, engine.profile, formats, kinds=engine.profile_kinds, user_profile=profile, changed=changed
        )
    shares = relative_reach(device, engine.kernels_from) if device else Reach(1.0, 1.0)
    if device and (rules := delta_rules(engine, changed or device, shares.memory)):
        chain += (rules,)
    return (*chain, assumed(engine, shares))
