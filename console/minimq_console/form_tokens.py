"""The token in each form that changes something: no other site knows it. Pure: randomness is an argument."""

from __future__ import annotations

import hashlib
import hmac

#: Bytes of the secret of a console.
SECRET_BYTES = 32


class FormTokens:
    """Makes and checks tokens. Immutable.

    A token is of one browser: of the random id in its cookie. So nothing is stored for those who only look.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def __repr__(self) -> str:
        return type(self).__name__

    def of(self, browser: str) -> str:
        """Return the token of a browser, by the id in its cookie."""
        return hmac.new(self._secret, browser.encode(), hashlib.sha256).hexdigest()

    def is_of(self, token: str, browser: str) -> bool:
        """Return whether a token is of a browser."""
        return bool(browser) and hmac.compare_digest(token.encode(), self.of(browser).encode())
