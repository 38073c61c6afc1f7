"""Numbers printed on a page of the book: how they are read, rounded, and found to be all accounted for."""

import re
from decimal import Decimal
from pathlib import Path

import mpmath

CHAPTERS = Path(__file__).resolve().parents[1] / "chapters"


def page_of(name):
    """The text of a page, ``fixed/theory`` for example, with every run of white space as one blank."""
    return re.sub(r"\s+", " ", (CHAPTERS / f"{name}.md").read_text(encoding="utf-8"))


def read(printed):
    r"""What a printed number says: ``5,861``, ``230{,}400``, ``5.7\cdot10^{9}``, ``10^4``, with or without dollars."""
    plain = printed.strip("$").replace("{,}", "").replace(",", "")
    plain = re.sub(r"\\cdot10\^\{?(-?\d+)\}?", r"e\1", plain)
    return Decimal(re.sub(r"^10\^\{?(-?\d+)\}?$", r"1e\1", plain))


def shown(printed):
    """How many digits are shown, without leading zeros."""
    return len(read(printed).as_tuple().digits)


def rounded(value, digits):
    """The number that a page should print for ``value``."""
    return Decimal(mpmath.nstr(mpmath.mpf(value), digits, min_fixed=1, max_fixed=0))


def check(page, pattern, value, digits):
    """The page prints this number once, with these digits, and correctly rounded."""
    found = re.findall(pattern, page)
    assert len(found) == 1, f"the page says this {len(found)} times"
    assert read(found[0]) == rounded(value, digits)
    assert shown(found[0]) == digits


def unaccounted(page, patterns, given):
    """Where the page shows a decimal number that neither a pattern's group nor the expression ``given`` covers."""
    held = [match.span(1) for pattern in patterns for match in re.finditer(pattern, page)]
    held += [match.span() for match in re.finditer(given, page)]
    return [
        page[max(match.start() - 40, 0) : match.end() + 10]
        for match in re.finditer(r"\d+\.\d+", page)
        if not any(low <= match.start() and match.end() <= high for low, high in held)
    ]
