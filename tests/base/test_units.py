"""Numbers as text."""

from __future__ import annotations

from inferometer.base.units import percent


def test_a_share_above_one_shows() -> None:
    assert [percent(x) for x in (0.1234, 0.9999, 1.0, 1.34)] == ["12.3%", "100%", "100%", "134.0%"]
