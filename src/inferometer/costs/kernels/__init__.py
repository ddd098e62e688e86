"""Where efficiencies come from: sources that answer in order, each saying who it is."""

from __future__ import annotations

from collections.abc import Mapping

from ...specs.structs import Engine, Hardware
from ..parallelism import Place
from .assumed import assumed, given, ideal, rounding
from .links import linked
from .lookup import Formats, by_shape
from .registry import Profile, relatives
from .source import FUSED, LINKED, ORIGINS, Source, Terms

__all__ = [
    "FUSED",
    "LINKED",
    "ORIGINS",
    "Formats",
    "Profile",
    "Source",
    "Terms",
    "assumed",
    "given",
    "ideal",
    "linked",
    "relatives",
    "rounding",
    "sources",
]


def sources(
    engine: Engine,
    efficiency: dict[str, float] | None = None,
    places: Mapping[str, Place] | None = None,
    device: Hardware | None = None,
    formats: Formats | None = None,
    profile: Profile | None = None,
) -> tuple[Source, ...]:
    """The sources of a request, best first."""
    if efficiency:
        return (given(**efficiency, places=places),)
    if not engine.kernels:
        return (ideal(),)
    found: tuple[Source, ...] = ()
    if places and device:
        found += (linked(places, device.architecture, engine.name),)
    if device and formats and engine.profile:
        found += by_shape(device, engine.profile, formats, engine.profile_kinds, profile)
    return (*found, assumed(engine))
