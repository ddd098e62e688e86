"""Where efficiencies come from: sources that answer in order, each saying who it is."""

from __future__ import annotations

from collections.abc import Mapping

from ..parallel import Place
from ..spec import Engine, Hardware
from .constants import assumed, given, ideal, rounding
from .kernels import Formats, by_shape
from .links import linked
from .shelf import Profile, relatives
from .source import FUSED, LINKED, ORIGINS, Source, Terms

__all__ = [
    "FUSED", "LINKED", "ORIGINS", "Formats", "Profile", "Source", "Terms", "assumed", "given", "ideal", "linked",
    "relatives", "rounding", "sources",
]  # fmt: skip


def sources(engine: Engine, efficiency: dict[str, float] | None = None, places: Mapping[str, Place] | None = None,
            device: Hardware | None = None, formats: Formats | None = None, profile: Profile | None = None,
            ) -> tuple[Source, ...]:  # fmt: skip
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
