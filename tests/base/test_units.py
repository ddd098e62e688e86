"""Numbers as text."""

from __future__ import annotations

from inferometer.base.units import either, figure, money, percent, seconds, si


def test_a_share_above_one_shows() -> None:
    assert [percent(x) for x in (0.1234, 0.9999, 1.0, 1.34, 0.0001)] == [*("12.3%", "100%", "100%", "134.0%", "<0.1%")]


def test_figures_keep_their_width() -> None:
    assert [figure(x) for x in (11, 1.6, 0.19, 99.96, 9.996, 999.6, 1234.5, 0.000012344, 2.125, -3, 0)] == [
        *("11.0", "1.60", "0.190", "100", "10.0", "1,000", "1,235", "0.0000123", "2.13", "-3.00", "0")
    ]
    assert [si(x, "B") for x in (77e9, 999.6e6, 16.06e9, 0, 3.35e18)] == [
        "77.0 GB",
        "1.00 GB",
        "16.1 GB",
        "0 B",
        "3,350 PB",
    ]


def test_money_has_cents_and_long_times_have_days() -> None:
    assert [money(x) for x in (5, 1.7, 14.3, 0.191, 0.05, 0.00123, 1234.5, None)] == [
        *("$5.00", "$1.70", "$14.30", "$0.191", "$0.0500", "$0.00123", "$1,235", "–")
    ]
    assert [seconds(x) for x in (11, 0.019, 385, 599, 1200, 9000, 4_500_191, 1e9, 1e-10)] == [
        *("11.0 s", "19.0 ms", "385 s", "599 s", "20.0 min", "2.50 h", "52.1 days", "31.7 years", "0.100 ns")
    ]


def test_choices_are_joined_as_people_do() -> None:
    assert [either("a"), either("ab"), either("abc")] == ["a", "a or b", "a, b or c"]
