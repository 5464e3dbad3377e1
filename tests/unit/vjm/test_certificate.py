# SPDX-License-Identifier: Apache-2.0
"""The control center's certificate: made once, private, and good for what agents compare."""

from __future__ import annotations

import hashlib
import os
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from koala_adapter.errors import ConfigurationError
from koala_adapter.vjm.certificate import digest, load_or_create, matches, new_token, server_context

if TYPE_CHECKING:
    from pathlib import Path


def shown_certificate(context: ssl.SSLContext) -> tuple[bytes | None, str | None]:
    """Shake hands in memory and return the certificate that a client sees, and the version of TLS."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname = False
    client_context.verify_mode = ssl.CERT_NONE
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(to_server, to_client, server_side=True)
    client = client_context.wrap_bio(to_client, to_server)
    for _ in range(3):
        for side in (client, server):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return client.getpeercert(binary_form=True), client.version()


def test_clients_see_what_the_fingerprint_says(tmp_path: Path) -> None:
    """The fingerprint is the SHA-256 of what a client is shown, over TLS 1.3."""
    certificate = load_or_create(tmp_path / "state")
    shown, version = shown_certificate(server_context(certificate))
    assert shown is not None
    assert hashlib.sha256(shown).hexdigest() == certificate.fingerprint
    assert version == "TLSv1.3"


def test_the_same_certificate_is_found_again(tmp_path: Path) -> None:
    assert load_or_create(tmp_path) == load_or_create(tmp_path)


def test_services_that_start_at_once_agree(tmp_path: Path) -> None:
    """Nobody replaces what another has just put there."""
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(load_or_create, [tmp_path / "state"] * 16))
    assert len(found) == 1
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["control-center.pem"]


def test_key_is_private(tmp_path: Path) -> None:
    """File 0600, directory 0700, whatever the umask."""
    before = os.umask(0)
    try:
        certificate = load_or_create(tmp_path / "state")
    finally:
        os.umask(before)
    assert certificate.path.stat().st_mode & 0o777 == 0o600
    assert certificate.path.parent.stat().st_mode & 0o777 == 0o700


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    """It may be known: the message names the file and what to do."""
    certificate = load_or_create(tmp_path)
    certificate.path.chmod(0o644)
    with pytest.raises(ConfigurationError, match=r"control-center\.pem.*remove it"):
        load_or_create(tmp_path)


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_damaged_file_is_refused(tmp_path: Path, text: str) -> None:
    certificate = load_or_create(tmp_path)
    certificate.path.write_text(text)
    with pytest.raises(ConfigurationError, match="control-center"):
        load_or_create(tmp_path)


def test_tokens_differ_and_match_only_themselves() -> None:
    """A token matches its own digest and no other, and the digest does not contain it."""
    one, other = new_token(), new_token()
    assert one != other
    assert matches(one, digest(one))
    assert not matches(other, digest(one))
    assert not matches(digest(one), digest(one))
    assert one not in digest(one)
