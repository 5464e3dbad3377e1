# SPDX-License-Identifier: Apache-2.0
"""Connection from a node to a task server, for Python 3.6 or newer with the standard library only.

It is copied to the node as ``koala_pull.py``. It dials out by TLS, compares the fingerprint of the certificate, and
sends the token before anything else. Then each side sends frames: a length and so many bytes.
"""

import hashlib
import socket
import ssl
import struct

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Optional


LEAVING = b""
"""The frame that says that no more work is wanted."""
CONNECTING = 60.0
"""Seconds for the connection to come about."""
LENGTH = struct.Struct(">Q")
PIECE = 1 << 20


def connected(host: str, port: int, fingerprint: str, *, asking_for: int = 0) -> ssl.SSLSocket:
    """Connect by TLS and return the connection. Raises ssl.SSLError for another server's certificate.

    ``asking_for``: port of the server, where host and port are those of a gateway; 0: they are the server's own.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # nobody has signed it: its fingerprint is compared instead
    plain = socket.create_connection((host, port), timeout=CONNECTING)
    try:
        if asking_for:
            plain.sendall(b"koala %d\n" % asking_for)
        connection = context.wrap_socket(plain, server_hostname=host)
    except BaseException:
        plain.close()
        raise
    if hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest() != fingerprint:
        connection.close()
        raise ssl.SSLError("the certificate is not the one that was expected")
    connection.settimeout(None)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def received(connection: ssl.SSLSocket) -> "Optional[bytes]":
    """Return the next frame; None at the end of the connection."""
    head = exactly(connection, LENGTH.size)
    return None if head is None else exactly(connection, LENGTH.unpack(head)[0])


def exactly(connection: ssl.SSLSocket, size: int) -> "Optional[bytes]":
    """Return exactly ``size`` bytes; None at the end of the connection."""
    data = bytearray()
    while len(data) < size:
        try:
            piece = connection.recv(min(size - len(data), PIECE))
        except OSError:
            return None
        if not piece:
            return None
        data += piece
    return bytes(data)


def sent(connection: ssl.SSLSocket, frame: bytes) -> bool:
    """Send a frame; return False at the end of the connection."""
    try:
        connection.sendall(LENGTH.pack(len(frame)) + frame)
    except OSError:
        return False
    return True
