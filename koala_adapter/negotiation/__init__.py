# SPDX-License-Identifier: Apache-2.0
"""Negotiation of resources by templates in XML: one protocol for the service and for programs.

All but ``schema`` and ``connection`` is pure, and serves both sides. This package is the door for programs, in Python
3.6 and its standard library: ``koala app --install`` joins its modules to one file, koala_nt.py, that may be copied
beside a program. ``schema``, which needs lxml, does not travel.

    connection = connect("head.example.org", 7322, token)
    connection.send(template("1", "APPLICATION", "node7", "head", [resource("CPU", 4)], direction="grow"))
    while True:
        event = connection.recv()
        if event.kind == "offer":
            connection.send(decide(event.template, {"CPU": 6}))
        elif event.kind == "accepted":
            connection.send(committed(event.template))
        else:
            break
    connection.close()
"""

from koala_adapter.negotiation.connection import (
    GREETING,
    Connection,
    accept,
    connect,
    connect_unix,
)
from koala_adapter.negotiation.document import (
    HEADER_SIZE,
    FrameBuffer,
    build,
    frame,
    parse,
)
from koala_adapter.negotiation.endpoint import (
    Endpoint,
    Event,
)
from koala_adapter.negotiation.templates import (
    CPU,
    LARGEST_QUANTITY,
    LARGEST_TEMPLATE,
    LONGEST_ANSWER_TIME,
    LONGEST_REASON,
    MEMORY,
    MOST_RESOURCES,
    MOST_ROUNDS,
    NAMESPACE,
    OTHER_SIDE,
    STATUSES,
    NegotiationError,
    NegotiationKey,
    NegotiationStepError,
    Resource,
    ResourceKey,
    Template,
    Terms,
    accepted,
    committed,
    consumed,
    countered,
    decide,
    rejected,
    resource,
    template,
    withdrawn,
)

__all__ = [
    "CPU",
    "GREETING",
    "HEADER_SIZE",
    "LARGEST_QUANTITY",
    "LARGEST_TEMPLATE",
    "LONGEST_ANSWER_TIME",
    "LONGEST_REASON",
    "MEMORY",
    "MOST_RESOURCES",
    "MOST_ROUNDS",
    "NAMESPACE",
    "OTHER_SIDE",
    "STATUSES",
    "Connection",
    "Endpoint",
    "Event",
    "FrameBuffer",
    "NegotiationError",
    "NegotiationKey",
    "NegotiationStepError",
    "Resource",
    "ResourceKey",
    "Template",
    "Terms",
    "accept",
    "accepted",
    "build",
    "committed",
    "connect",
    "connect_unix",
    "consumed",
    "countered",
    "decide",
    "frame",
    "parse",
    "rejected",
    "resource",
    "template",
    "withdrawn",
]
