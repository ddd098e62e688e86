"""The flags of ``analyze`` as the controls of a page: one help text for both."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from .options import ENGINE, MACHINE, METHODS, NUMBERS, WORKLOAD, options

if TYPE_CHECKING:
    from ..views.web.catalogue import Control

NOT_SHOWN = ("profile", "calibration", "hf_token")  # they name files and secrets of this machine


def flags() -> dict[str, click.Option]:
    """The options that describe a plan, by keyword: ``flags()["batch_size"].help``"""

    def holder() -> None:
        """Has the options."""

    options(WORKLOAD, MACHINE, METHODS, NUMBERS, ENGINE)(holder)
    found = {option.name: option for option in reversed(holder.__click_params__)}  # type: ignore[attr-defined]
    return {str(name): option for name, option in found.items() if name not in NOT_SHOWN}


def controls() -> list[Control]:
    """The controls of the page, in its order."""
    from ..views.web.catalogue import controls as made

    return made(flags())
