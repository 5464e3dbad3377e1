# SPDX-License-Identifier: Apache-2.0
"""Secrets of the channel: how they are made, what is kept of them, and how they are compared.

Only digests are ever stored, so that who reads the journal cannot speak as an agent.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

TOKEN_BYTES = 32


def new_token() -> str:
    """Return a new secret of 256 random bits, as text that is safe in a script and on a line."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest(secret: str) -> str:
    """Return what may be stored of ``secret``: SHA-256 in hexadecimal. Enough for secrets that are all randomness."""
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Tell whether ``secret`` has the digest ``stored``, in a time that says nothing of how nearly it did."""
    return hmac.compare_digest(digest(secret), stored)
