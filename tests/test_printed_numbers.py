"""The checks of printed numbers can fail."""

import pytest
from mpmath import mpf

from tests.printed_numbers import check, read, rounded, shown, unaccounted


def test_reading_and_rounding():
    assert read(r"$5.7\cdot10^{9}$") == rounded(5666536271, 2) != rounded(5666536271, 3)
    assert read(r"$3.7\cdot10^{236}$") == rounded(mpf("3.745e236"), 2) != rounded(mpf("3.745e236"), 3)
    assert read("230{,}400") == 230400 and read("5,861") == 5861
    assert read("10^4") == 10000 and float(read("10^{-4}")) == 1e-4
    assert shown("0.0190") == 3


@pytest.mark.parametrize(
    ("page", "value", "digits"),
    [
        ("the error is 0.25 here", 0.26, 2),  # another number
        ("the error is 0.25 here", 0.25, 3),  # other digits
        ("the error is 0.25, the error is 0.25", 0.25, 2),  # twice
        ("the floor is 0.25", 0.25, 2),  # not at all
    ],
)
def test_a_wrong_number_is_seen(page, value, digits):
    check("the error is 0.25 here", r"error is ([\d.]+\d)", 0.25, 2)
    with pytest.raises(AssertionError):
        check(page, r"error is ([\d.]+\d)", value, digits)


def test_a_number_without_a_check_is_seen():
    page = r"with $\alpha=0.01$ the error is 0.25, or 0.26"
    assert unaccounted(page, [r"error is (0\.25)", r"or (0\.26)"], r"\\alpha=0\.01") == []
    assert len(unaccounted(page, [r"error is (0\.25)"], r"\\alpha=0\.01")) == 1
    assert len(unaccounted(page, [r"error is (0\.25)", r"or (0\.26)"], r"nothing")) == 1
