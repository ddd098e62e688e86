"""Values of axes: what people write is what they get, and what makes no sense is one sentence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferometer.base.errors import BadValue
from inferometer.base.ranges import MAX_VALUES, choices, numbers, switches

FLAG = "--batch-size"


@given(st.integers(0, 10**6), st.integers(0, 5000), st.integers(1, 10**6))
def test_a_range_by_step_has_both_ends_and_equal_steps(start: int, count: int, step: int) -> None:
    stop = start + count * step
    found = numbers(FLAG, f"{start}:{stop}:{step}", whole=True)
    assert (found[0], found[-1], len(found)) == (start, stop, count + 1)
    assert all(value % step == start % step and start <= value <= stop for value in found)
    assert numbers(FLAG, f"{start}:{stop + step - 1}:{step}", whole=True) == found, "what is not hit is not there"


@given(st.integers(1, 1000), st.integers(0, 12), st.integers(2, 5))
def test_a_range_by_ratio_has_both_ends_and_equal_ratios(start: int, count: int, ratio: int) -> None:
    stop = start * ratio**count
    found = numbers(FLAG, f"{start}:{stop}:x{ratio}", whole=True)
    assert found == tuple(start * ratio**i for i in range(count + 1))
    if count:
        assert numbers(FLAG, f"{start}:{stop - 1}:x{ratio}", whole=True) == found[:-1]


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.floats(1.01, 10))
def test_a_ratio_that_is_not_whole_gives_whole_numbers_in_range(start: int, more: int, ratio: float) -> None:
    found = numbers(FLAG, f"{start}:{start + more}:x{ratio}", whole=True)
    assert found[0] == start and list(found) == sorted(set(found))
    assert all(isinstance(value, int) and start <= value <= start + more for value in found)


@given(st.floats(0, 1), st.integers(1, 200), st.sampled_from([0.1, 0.05, 0.025, 0.3]))
def test_steps_of_fractions_do_not_drift(start: float, count: int, step: float) -> None:
    found = numbers("--overlap", f"{start}:{start + count * step}:{step}", whole=False)
    assert len(found) == count + 1 and np.allclose(np.diff(found), step)


def test_mixtures_keep_their_order_and_nothing_comes_twice() -> None:
    assert numbers(FLAG, "512, 1,8:32:8,16:64:x2,", whole=True) == (512, 1, 8, 16, 24, 32, 64)
    assert numbers(FLAG, ["1:4:x2", 3, "1e3"], whole=True) == (1, 2, 4, 3, 1000)
    assert numbers(FLAG, np.array([1, 2]), whole=True) == numbers(FLAG, range(1, 3), whole=True) == (1, 2)
    assert numbers("--overlap", "0.1:0.5:0.1", whole=False) == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert choices("-q", ["bf16", "fp8, int8,bf16"]) == ("bf16", "fp8", "int8")
    assert choices("--turns", "1:2,3:4", lambda text: [text]) == ("1:2,3:4",)
    assert choices("-q", [None, "fp8"]) == (None, "fp8")
    assert switches("--fusion", [False, True, True]) == (False, True) and switches("--fusion", True) == (True,)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no values"),
        (",", "has no values"),
        ([], "has no values"),
        ("four", "not 'four'"),
        ("1:8", "has no step: 1:8:1 counts up, 1:8:x2 doubles"),
        ("8:1:1", "8:1:1 runs backwards"),
        ("1:8:0", "the step must be above 0"),
        ("1:8:-1", "the step must be above 0"),
        ("1:8:x1", "the ratio must be above 1"),
        ("1:8:x0.5", "the ratio must be above 1"),
        ("0:8:x2", "must start above 0"),
        ("1:2:3:4", "not '1:2:3:4'"),
        ("1:1e12:1", "has 1,000,000,000,000 values"),
        ("1:1e17:x1.0000001", "values, more than 1,000,000"),
        ("1:8:1e-300", "must be whole numbers"),
        ("1.5", "must be whole numbers, not '1.5'"),
        ("1:9:2.5", "whole numbers"),
        ("nan", "not 'nan'"),
        ("inf", "not 'inf'"),
        ("1:inf:1", "not 'inf'"),
        ("9" * 400, "not '999"),
        (":", "not ''"),
        (True, "not True"),
        (None, "not None"),
        ({"a": 1}, "not {'a': 1}"),
        ([[1]], "not [1]"),
        (b"1", "not b'1'"),
    ],
)
def test_what_makes_no_sense_is_a_sentence(text: object, sentence: str) -> None:
    with pytest.raises(BadValue) as error:
        numbers(FLAG, text, whole=True)
    assert str(error.value).startswith(FLAG) and sentence in str(error.value) and "\n" not in str(error.value)


@pytest.mark.slow
def test_an_axis_has_an_end() -> None:
    assert len(numbers(FLAG, f"1:{MAX_VALUES}:1", whole=True)) == MAX_VALUES
    with pytest.raises(BadValue, match="more than 1,000,000 values"):
        numbers(FLAG, f"1:{MAX_VALUES}:1,{MAX_VALUES + 5}", whole=True)
    with pytest.raises(BadValue, match="values, more than"):
        numbers("--overlap", "0:1:1e-300", whole=False)
    with pytest.raises(BadValue, match="a list of both"):
        switches("--fusion", "yes")
    with pytest.raises(BadValue, match="has no values"):
        choices("-q", " , ")
