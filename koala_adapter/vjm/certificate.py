# SPDX-License-Identifier: Apache-2.0
"""Secrets of the channel: tokens and their digests, and the control center's certificate.

The certificate is made once, is sent in the center's own handshakes only, and is pinned by the agents. It is
self-signed and never expires, since agents compare its fingerprint and nothing else (RFC 5280, section 4.1.2.5, has the
date that means "no end"). Key and certificate are in one file, so that they always belong together.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import ssl
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

from koala_adapter import vjm
from koala_adapter.errors import ConfigurationError

if TYPE_CHECKING:
    from pathlib import Path


# -- Tokens: making, storing and comparing them --------------------------------------------------------------
# Only digests are ever stored, so that a reader of the journal cannot speak as an agent.

TOKEN_BYTES = 32


def new_token() -> str:
    """Return a new secret of 256 random bits, as text that is safe in a script and on a line."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def digest(secret: str) -> str:
    """Return the SHA-256 digest of a random secret in hexadecimal, which may be stored."""
    return hashlib.sha256(secret.encode()).hexdigest()


def matches(secret: str, stored: str) -> bool:
    """Return whether a secret has a digest, in constant time."""
    return hmac.compare_digest(digest(secret), stored)


# -- The certificate -----------------------------------------------------------------------------------------

FILE_NAME = "control-center.pem"
BEGIN, END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A private key and its certificate."""

    path: Path
    """PEM file with both, of mode 0600."""
    fingerprint: str
    """SHA-256 of the certificate (DER) in hexadecimal: what agents compare."""


def load_or_create(directory: Path) -> Certificate:
    """Return the certificate kept in ``directory``, making directory (0700) and certificate when there are none.

    Two services that start at once get one certificate. Raises ConfigurationError when what is there cannot be read,
    or could have been read or exchanged by another user.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    path = directory / FILE_NAME
    if not path.exists():
        vjm.create_certificate(path)
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o077:
                raise ConfigurationError(
                    f"{path} can be read by others: its key may be known",
                    hint="remove it while no job runs; a new one is made",
                )
            fingerprint = fingerprint_of(file.read().decode("ascii"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"cannot read the certificate {path}: {error}", hint="remove the file") from error
    return Certificate(path=path, fingerprint=fingerprint)


def server_context(certificate: Certificate) -> ssl.SSLContext:
    """Return the TLS settings of the control center: 1.3, or 1.2 with forward secrecy for nodes with an old OpenSSL.

    No session is kept or resumed: an agent connects once and stays, and thousands of tickets would only cost memory.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(TLS12_CIPHERS)
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    try:
        context.load_cert_chain(certificate.path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(f"cannot use {certificate.path}: {error}", hint="remove the file") from error
    return context


def fingerprint_of(pem: str) -> str:
    """Return the SHA-256 of a certificate (DER) next to a key, in hexadecimal. Raises ValueError and OSError."""
    _, begin, rest = pem.partition(BEGIN)
    base64, end, _ = rest.partition(END)
    der = ssl.PEM_cert_to_DER_cert(begin + base64 + end)
    ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=der)
    return hashlib.sha256(der).hexdigest()
