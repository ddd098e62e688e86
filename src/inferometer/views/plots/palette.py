"""All colours: of the pictures that matplotlib draws, and, as CSS variables, of the page.

Okabe and Ito's palette, distinct with any kind of colour vision; on dark paper each is lighter.

    palette_css()      # ':root { --ink: #1f2933; … }'
"""

from __future__ import annotations

LIGHT = {
    "ink": "#1f2933",  # text and the lines that matter
    "muted": "#5b6672",  # text and lines beside them
    "faint": "#d5dae0",  # borders
    "paper": "#ffffff",
    "panel": "#fafbfc",
    "soft": "#eef1f4",  # a field under the pointer
    "grid": "#e9edf1",
    "focus": "#0072b2",
    "accent": "#0067a0",  # text and buttons: dark enough to be read on white
    "alert": "#c24e00",
    "on-color": "#ffffff",  # text on a patch of colour
    "blue": "#0072b2",
    "orange": "#e69f00",
    "sky": "#56b4e9",
    "green": "#009e73",
    "vermillion": "#d55e00",
    "purple": "#cc79a7",
    "grey": "#7f7f7f",
    "overhead": "#9aa3ad",  # memory of no tensor
}
DARK = {
    "ink": "#e6eaee",
    "muted": "#9aa6b2",
    "faint": "#3a444f",
    "paper": "#151a20",
    "panel": "#1b2129",
    "soft": "#242c35",
    "grid": "#28303a",
    "focus": "#8fd0f7",
    "accent": "#7cc4f0",
    "alert": "#f57f3b",
    "on-color": "#10151a",
    "blue": "#4aa8e0",
    "orange": "#f0b429",
    "sky": "#8fd0f7",
    "green": "#2fc79b",
    "vermillion": "#f57f3b",
    "purple": "#dd9cc0",
    "grey": "#9aa3ad",
    "overhead": "#7b8792",
}

# Pictures are drawn on white.
INK, MUTED, FAINT, PANEL, GRID = (LIGHT[name] for name in ("ink", "muted", "faint", "panel", "grid"))
BLUE, ORANGE, SKY = LIGHT["blue"], LIGHT["orange"], LIGHT["sky"]
GREEN, VERMILLION, PURPLE, GREY = LIGHT["green"], LIGHT["vermillion"], LIGHT["purple"], LIGHT["grey"]
OVERHEAD = LIGHT["overhead"]
SLATE = "#6b7785"  # bars of a quantity that no colour stands for
SILVER = "#b9c0c8"  # points that do not count
BROWN = "#7a5c2e"  # the seventh of several curves
ARROW = "#98a2ad"  # residual connections


def palette_css() -> str:
    """The palette as a style sheet: light, or dark where the system or the page's own switch says so."""
    light, dark = ("".join(f" --{name}: {color};" for name, color in colors.items()) for colors in (LIGHT, DARK))
    return (
        f":root {{ color-scheme: light;{light} }}\n"
        f'@media (prefers-color-scheme: dark) {{ :root:not([data-theme="light"]) {{ color-scheme: dark;{dark} }} }}\n'
        f':root[data-theme="dark"] {{ color-scheme: dark;{dark} }}\n'
    )


def tint(color: str, share: float) -> str:
    """A colour on white paper: ``tint(INK, 0.5)``"""
    parts = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(255 - (255 - part) * share):02x}" for part in parts)
