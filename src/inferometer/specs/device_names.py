"""Devices by the names that drivers, tables and folders give them.

recognise("NVIDIA GeForce RTX 4090")     # 'rtx4090'
is_same("NVIDIA H200", catalog.hardware("h200"))     # True
"""

from __future__ import annotations

import re

from .catalog import normalized, registered_name
from .structs import Hardware

NOISE = (
    "nvidia",
    "geforce",
    "amd",
    "instinct",
    "tesla",
    "generation",
    "blackwell",
    "server",
    "workstation",
    "edition",
    "max-q",
    "gpu",
)


def recognise(text: str) -> str | None:
    """``recognise("NVIDIA GeForce RTX 4090")  # 'rtx4090'``; None if the catalogue has no such device."""
    name = registered_name("hardware", text) if text.strip() else None
    pieces = [word for word in re.split(r"[-\s]+", normalized(text)) if word and word not in NOISE]
    while pieces and not name:  # what follows a name may be a form factor, a count or a site's own word
        name = registered_name("hardware", "-".join(pieces)) or registered_name("hardware", "".join(pieces))
        pieces.pop()
    return name


def is_same(text: str, device: Hardware) -> bool:
    """Whether a name means this device, of the catalogue or of a file: ``is_same("Xeon", h200)  # False``"""
    return recognise(text) == device.name or normalized(text) in {normalized(device.name), normalized(device.label)}
