"""The longest delay of a message."""

from __future__ import annotations

from typing import Final

#: Most days between the sending of a message and its due time: a year, and a day more in a leap year.
MAX_DELAY_DAYS: Final = 366
MAX_DELAY_S: Final = MAX_DELAY_DAYS * 86_400
MAX_DELAY_MS: Final = MAX_DELAY_S * 1000
