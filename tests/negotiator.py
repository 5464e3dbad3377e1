# SPDX-License-Identifier: Apache-2.0
"""A program that negotiates for a job with nothing but sockets and XML: it imports nothing of koala."""

from __future__ import annotations

import socket
from xml.etree import ElementTree as ET

ADDED = "{urn:koala-adapter:negotiation}"
PATIENCE = 120.0
TEMPLATE = """<?xml version="1.0" encoding="UTF-8"?>
<NT NT_AgreementID="{agreement}" xmlns:k="urn:koala-adapter:negotiation"{more}>
  <NT_Initiator>{initiator}</NT_Initiator>
  <NT_Source>{source}</NT_Source>
  <NT_Dest>{dest}</NT_Dest>
  <NT_Status>{status}</NT_Status>
  <Resource>
    <Type>CPU</Type>
    <Quantity>{count}</Quantity>
    <Usage>NT_REQUIRED</Usage>
    <Negotiability>NT_NEGOTIABLE</Negotiability>
    <Status>{status}</Status>
  </Resource>
</NT>
"""


class Negotiator:
    """One connection."""

    def __init__(self, host: str, port: int, token: str) -> None:
        """Connect and show the token."""
        self._socket = socket.create_connection((host, port), PATIENCE)
        self._stream = self._socket.makefile("rwb")
        self._send(f"KOALA-NT 1 {token}".encode())

    def _send(self, payload: bytes) -> None:
        self._stream.write(b"%08d\n%b" % (len(payload), payload))
        self._stream.flush()

    def send(self, payload: bytes) -> None:
        """Send anything."""
        self._send(payload)

    def ask(self, agreement: str, count: int, *, direction: str = "grow", obligation: str = "voluntary") -> None:
        """Ask for processors, or give some back."""
        more = f' k:Direction="{direction}" k:Obligation="{obligation}"'
        text = TEMPLATE.format(
            agreement=agreement, more=more, initiator="APPLICATION", source="here", dest="koala",
            status="NT_NEGOTIATION", count=count,
        )  # fmt: skip
        self._send(text.encode())

    def answer(self, heard: Heard, status: str) -> None:
        """Accept, reject or commit to what was heard."""
        koala, here = ("koala", "here") if heard.initiator == "RMS" else ("here", "koala")
        text = TEMPLATE.format(
            agreement=heard.agreement, more="", initiator=heard.initiator, source=koala, dest=here, status=status,
            count=heard.count,
        )  # fmt: skip
        self._send(text.encode())

    def hear(self) -> Heard:
        """Return the next template. Raises EOFError when koala has closed the connection."""
        header = self._stream.read(9)
        if len(header) < len("00000000\n"):
            raise EOFError
        return Heard(self._stream.read(int(header)))

    def expect(self, status: str) -> Heard:
        """Return the next template, which must have a status."""
        heard = self.hear()
        assert heard.status == status, ET.tostring(heard.root).decode()
        return heard

    def hears_the_end(self) -> bool:
        """Wait until koala has closed the connection, whatever it says before."""
        try:
            while True:
                self.hear()
        except EOFError:
            return True

    def close(self) -> None:
        """End the connection."""
        self._stream.close()
        self._socket.close()


class Heard:
    """A template."""

    def __init__(self, payload: bytes) -> None:
        """Read what matters of it."""
        self.root = ET.fromstring(payload)  # noqa: S314 - of koala itself
        self.agreement = self.root.get("NT_AgreementID", "")
        self.initiator = self.root.findtext("NT_Initiator", "")
        self.status = self.root.findtext("NT_Status", "")
        self.count = int(self.root.findtext("Resource/Quantity", "0"))
        self.direction = self.root.get(f"{ADDED}Direction", "")
        self.reason = self.root.get(f"{ADDED}Reason", "")
