"""Properties are text; this is what else a text can mean."""

from __future__ import annotations

import re
from decimal import Decimal

#: What a property is compared with. Decimals, because they are exact: neither 0.1 nor a long id is rounded.
Value = str | Decimal | bool

# The exponent is bounded, so that Decimal takes whatever matches. No part can match in two ways, so that a long text
# which is no number costs no more than one that is.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_TRUTHS = {"true": True, "false": False}


def number_of(text: str) -> Decimal | None:
    """Return the number that is written in a text, None when it is none.

    A number has digits, perhaps a sign, a decimal point, an exponent of up to four digits, and nothing else: neither
    spaces nor `inf`.
    """
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def truth_of(text: str) -> bool | None:
    """Return True for "true" and False for "false", in upper or lower case; None for anything else."""
    return _TRUTHS.get(text.lower())
