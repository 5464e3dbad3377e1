# SPDX-License-Identifier: Apache-2.0
"""One-time tokens by which an application that connects by TCP shows who it is.

A token is shown in the first frame of a connection, before anything of a template is read, and is good for one
connection. Only digests are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN_BYTES = 32
GREETING = b"KOALA-NT 1 "
"""Begins the first frame of a connection; the token follows."""
LONGEST_GREETING = 256
"""Bytes."""


class OneTimeTokens:
    """The tokens that were given out and not yet used."""

    def __init__(self) -> None:
        """Begin without any."""
        self._applications: dict[bytes, str] = {}

    def issue(self, application: str) -> str:
        """Return a new token for an application."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        self._applications[_digest(token.encode())] = application
        return token

    def redeem(self, greeting: bytes) -> str | None:
        """Return whose token a greeting shows, and use the token up; None: it shows none that is good."""
        if not greeting.startswith(GREETING):
            return None
        shown = _digest(greeting.removeprefix(GREETING))
        # Every token is compared, so that the time says nothing of how nearly one was met.
        found = [kept for kept in self._applications if hmac.compare_digest(kept, shown)]
        return self._applications.pop(found[0]) if found else None

    def revoke(self, application: str) -> None:
        """Make the tokens of an application void."""
        self._applications = {kept: one for kept, one in self._applications.items() if one != application}


def _digest(token: bytes) -> bytes:
    return hashlib.sha256(token).digest()
