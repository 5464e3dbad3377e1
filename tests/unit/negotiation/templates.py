# SPDX-License-Identifier: Apache-2.0
"""Templates that the tests of negotiation share, and resource management behind the service's own port."""

from __future__ import annotations

import random
import string
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from hypothesis import strategies as st

from koala_adapter import negotiation as nt
from koala_adapter.host.accepting import Admission
from koala_adapter.model import JobId
from koala_adapter.negotiation import Resource, ResourceKey, Template
from koala_adapter.negotiation.templates import (
    APPLICATION,
    GROW,
    MANDATORY,
    NT_ACCEPTED,
    NT_FIXED,
    NT_NEGOTIABLE,
    NT_NEGOTIATION,
    NT_OPTIONAL,
    NT_REQUIRED,
    RMS,
    SHRINK,
    STATUSES,
    VOLUNTARY,
)
from koala_adapter.service.sizes.port import Access, NegotiationPort
from tests.frames import frames_of, hear

# -- Templates that the tests of negotiation share: the published one, one with all that koala adds, and random ones.

PUBLISHED = b"""<?xml version="1.0" encoding="UTF-8"?>
<NT NT_AgreementID="1001" xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance" xsi:noNamespaceSchemaLocation="NT.xsd">
  <NT_Initiator>RMS</NT_Initiator>
  <NT_Source>rms.example.org</NT_Source>
  <NT_Dest>node7.example.org</NT_Dest>
  <NT_Status>NT_NEGOTIATION</NT_Status>
  <Resource>
    <Type>CPU</Type>
    <Quantity>4</Quantity>
    <Usage>NT_REQUIRED</Usage>
    <Negotiability>NT_NEGOTIABLE</Negotiability>
    <Status>NT_NEGOTIATION</Status>
  </Resource>
  <Resource>
    <Type>MEM</Type>
    <Quantity>1024</Quantity>
    <Usage>NT_OPTIONAL</Usage>
    <Negotiability>NT_FIXED</Negotiability>
    <Status>NT_NEGOTIATION</Status>
  </Resource>
</NT>
"""
"""The published instance of the template."""

CPU: ResourceKey = ("CPU", "", "")
MEM: ResourceKey = ("MEM", "", "")


def request(quantity: int = 4, *, agreement_id: str = "1", initiator: str = APPLICATION, memory: int = 0) -> Template:
    """Return an application's wish for processors, and for memory if it can be had; or the offer of both."""
    resources = [Resource(type="CPU", quantity=quantity)]
    if memory:
        resources.append(Resource(type="MEM", quantity=memory, usage=NT_OPTIONAL, negotiability=NT_FIXED))
    return Template(
        agreement_id=agreement_id,
        initiator=initiator,
        source="node7",
        dest="head",
        direction=GROW,
        obligation=VOLUNTARY,
        resources=tuple(resources),
    )


def full() -> Template:
    """Return a template in which every field says something."""
    beta = Resource(
        type="GPU.x", quantity=3, minimum=2, maximum=9, cluster="beta", component="solver_1", usage=NT_OPTIONAL
    )
    return Template(
        agreement_id="a:7-x._", initiator=APPLICATION, source="node7", dest="fe80::1",
        direction=SHRINK, obligation=MANDATORY, answer_within=12.125, round=3,
        reason="""job <14> & "others" wait: it's Jürgen's \u2026""",
        resources=(beta, Resource(type="CPU", quantity=2**31 - 1, negotiability=NT_FIXED)),
    )  # fmt: skip


def published(template: Template) -> Template:
    """Return a template with nothing but what the published form has."""
    plain = tuple(one._replace(minimum=None, maximum=None, cluster="", component="") for one in template.resources)
    return template._replace(resources=plain, direction="", obligation="", answer_within=None, round=None, reason="")


def pair(**limits: float) -> tuple[nt.Endpoint, nt.Endpoint]:
    """Return the two ends of a connection: resource management, and an application."""
    rms = nt.Endpoint(RMS, "head", "node7", **limits)  # type: ignore[arg-type]
    return rms, nt.Endpoint(APPLICATION, "node7", "head", **limits)  # type: ignore[arg-type]


def carried(source: nt.Endpoint, to: nt.Endpoint, now: float = 0.0) -> list[nt.Event]:
    """Hand over what one end has to send, and return what happens at the other."""
    return hear(to, b"".join(frames_of(source)), now)


_LETTERS = string.ascii_letters
_INNER = _LETTERS + string.digits


def _words(first: str, rest: str, longest: int) -> st.SearchStrategy[str]:
    return st.builds(str.__add__, st.sampled_from(first), st.text(rest, max_size=longest - 1))


_names = _words(_LETTERS, _INNER + "_-", 63)
_hosts = _words(_INNER, _INNER + "._:-", 64)
_sayable = st.text(_INNER + string.punctuation + " \u00a0\u00e9\u2026\ufffd\U0001f600", max_size=60)


@st.composite
def resources(draw: st.DrawFn) -> Resource:
    """Draw a resource."""
    least, quantity, most = sorted(draw(st.lists(st.integers(1, 2**31 - 1), min_size=3, max_size=3)))
    usage = draw(st.sampled_from([NT_REQUIRED, NT_OPTIONAL]))
    return Resource(
        type=draw(st.sampled_from(["CPU", "MEM", "GPU"]) | _words(_LETTERS, _INNER + "._-", 64)),
        quantity=quantity,
        minimum=draw(st.sampled_from([None, least])),
        maximum=draw(st.sampled_from([None, most])),
        usage=usage,
        negotiability=draw(st.sampled_from([NT_NEGOTIABLE, NT_FIXED])),
        status=draw(st.sampled_from(STATUSES if usage == NT_OPTIONAL else [NT_NEGOTIATION, NT_ACCEPTED])),
        cluster=draw(st.just("") | _names),
        component=draw(st.just("") | _names),
    )


templates: st.SearchStrategy[Template] = st.builds(
    Template,
    agreement_id=_hosts,
    initiator=st.sampled_from([RMS, APPLICATION]),
    source=_hosts,
    dest=_hosts,
    status=st.sampled_from(STATUSES),
    resources=st.lists(resources(), min_size=1, max_size=4, unique_by=lambda one: one.key).map(tuple),
    direction=st.sampled_from(["", GROW, SHRINK]),
    obligation=st.sampled_from(["", VOLUNTARY, MANDATORY]),
    answer_within=st.none() | st.integers(1, 9_999_999_999).map(lambda number: round(number / 1000, 3)),
    round=st.none() | st.integers(1, 9999),
    reason=_sayable,
)
"""Templates of any kind."""

_PIECES = (
    b"<!DOCTYPE NT>", b'<!ENTITY x "y">', b"&x;", b"&#0;", b"&#xD800;", b"\x00", b"\xff\xfe", b"<NT>", b"</NT>",
    b'<?xml version="1.1"?>', b"<![CDATA[4]]>", b"<!-- x -->", b"-1", b"99999999999999999999", b"0", b"NT_ACCEPTED",
    b"\xc3\x28", b"k:Round='9'", b'xmlns:k=""', b"<k:x/>", b" ", b"\n", b"&lt;", b"]]>", b"<?p x?>", b"\xef\xbb\xbf",
)  # fmt: skip


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return a document with a few random wounds."""
    changed = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        place = chance.randrange(len(changed) + 1)
        length = chance.randint(1, 30)
        match chance.randrange(6):
            case 0:
                del changed[place : place + length]
            case 1:
                changed[place:place] = chance.choice(_PIECES)
            case 2:
                changed[place : place + length] = chance.choice(_PIECES)
            case 3:
                changed[place:place] = changed[place : place + length]
            case 4 if place < len(changed):
                changed[place] = chance.randrange(256)
            case _:
                start = chance.randrange(len(changed) + 1)
                changed[place : place + length] = changed[start : start + length]
    return bytes(changed)


# -- Resource management with some free processors behind the service's own port, for programs that connect to it.


class Manager:
    """Grants what is free, and reports what is agreed on as allocated."""

    def __init__(
        self, free: int = 6, *, offers: int = 0, admission: Admission | None = None, host: str = "127.0.0.1"
    ) -> None:
        """``offers``: processors that each program is offered when it comes."""
        self.free = free
        self.port = NegotiationPort(host, self)
        if admission is not None:
            self.port.admission = admission
        self.endpoints: dict[JobId, nt.Endpoint] = {}
        self._offers = offers

    async def access(self, job_id: str = "1") -> Access:
        """Return how a program gets in, once."""
        return await self.port.access(JobId(job_id))

    @property
    def connections(self) -> int:
        """Programs that are connected."""
        return len(self.port.connections)

    def endpoint(self, job_id: JobId) -> nt.Endpoint:
        """Return the end of a job's negotiations, made now if need be."""
        return self.endpoints.setdefault(job_id, nt.Endpoint(RMS, "head", "node7"))

    def program_came(self, job_id: JobId) -> None:
        """Say what may not have arrived, and offer what is to be offered."""
        endpoint = self.endpoint(job_id)
        endpoint.resumed()
        if self._offers:
            endpoint.tell(nt.template("1", RMS, "head", "node7", [nt.resource("CPU", self._offers)]), 0)
        self._say(job_id)

    def program_said(self, job_id: JobId, payload: bytes) -> None:
        """Answer what a program has said."""
        endpoint = self.endpoint(job_id)
        for event in endpoint.hear(nt.parse(payload), 0):
            if event.template is None:
                continue
            if event.kind == "offer":
                endpoint.tell(nt.decide(event.template, {"CPU": self.free}), 0)
            elif event.kind in {"accepted", "agreed"}:
                if event.kind == "accepted":
                    endpoint.tell(nt.committed(event.template), 0)
                endpoint.tell(nt.consumed(event.template), 0)
                self.free -= event.template.quantity("CPU")
        self._say(job_id)

    def program_went(self, job_id: JobId) -> None:
        """Lose what is not agreed on."""
        self.endpoint(job_id).disconnected(0)

    def _say(self, job_id: JobId) -> None:
        for template in self.endpoint(job_id).take_outbox():
            self.port.say(job_id, nt.build(template))


@asynccontextmanager
async def listening(manager: Manager) -> AsyncIterator[Manager]:
    """Have a manager listen by TCP."""
    async with anyio.create_task_group() as tasks:
        manager.port.open(tasks)
        yield manager
        tasks.cancel_scope.cancel()
