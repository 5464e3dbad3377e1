# SPDX-License-Identifier: Apache-2.0
"""Who may see the pages: a token in the first link, then a cookie; and which requests are refused. No I/O, but chance.

Every user of this host can connect to a port on loopback, and every page in the browser can send requests there. So a
request needs the cookie, must be for a name of this host, and must come from our own pages where it says where it
comes from.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from ipaddress import ip_address
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The parts of a request that decide whether it is answered."""

    method: str
    hosts: tuple[str, ...]
    """Values of its headers Host; there must be one."""
    origin: str | None
    """Its header Origin."""
    cookie: str
    """Its cookie of our name; empty: it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Status and text with which a request is refused."""

    status: int
    """As HTTP counts them."""
    reason: str


def _secret() -> str:
    return secrets.token_urlsafe(32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Token, cookie and host names by which one run of ``koala web`` admits requests."""

    names: frozenset[str] = frozenset({"localhost"})
    """Names of this host, in lower case, by which a browser may ask for a page beside any address. It cannot be brought
    to take an address for a page of others, as it can a name. The port does not matter: ssh -L may have another."""
    token: str = field(default_factory=_secret)
    """In the link; a browser that has it gets the cookie."""
    session: str = field(default_factory=_secret)
    """Value of the cookie."""
    place: str = field(default_factory=lambda: secrets.token_hex(8))
    """First part of the path of every page. Browsers send a cookie of a host to all of its ports, thus also to programs
    of other users, unless it is for a path that these do not know."""

    @property
    def base(self) -> str:
        """Path of the first page, with a slash at its end."""
        return f"/{self.place}/"

    @property
    def cookie(self) -> str:
        """Name of the cookie."""
        return f"koala-{self.place}"

    @property
    def proof(self) -> str:
        """Secret that forms carry, as evidence that they come from one of our pages."""
        return hmac.new(self.session.encode(), b"form", hashlib.sha256).hexdigest()

    def refusal_of_any(self, asked: Asked) -> Refusal | None:
        """Return why a request is refused even with the right cookie; None when it is not."""
        host = asked.hosts[0] if len(asked.hosts) == 1 else ""
        name = _name(host)
        if name not in self.names and not _is_address(name):
            return Refusal(status=421, reason="This is not the host of that name.")
        if asked.origin is not None and asked.origin != f"http://{host}":
            return Refusal(status=403, reason="The request comes from another page.")
        if asked.method not in {"GET", "HEAD"} and asked.origin is None:
            return Refusal(status=403, reason="The request does not say from which page it comes.")
        return None

    def refusal(self, asked: Asked) -> Refusal | None:
        """Return why a request for a page is refused; None: it is not."""
        return self.refusal_of_any(asked) or (
            None
            if same(asked.cookie, self.session)
            else Refusal(status=401, reason="Open the link that koala web has printed: it has a token.")
        )


def same(given: str, secret: str) -> bool:
    """Compare a given text with a secret in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), secret.encode())


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _name(host: str) -> str:
    """Return the host name in a Host header, without port; empty when there is none."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""
