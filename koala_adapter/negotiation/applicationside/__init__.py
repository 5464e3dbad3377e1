# SPDX-License-Identifier: Apache-2.0
"""Negotiation for applications: modules that need the standard library of Python 3.6 or newer, and nothing else.

``koala app --install`` joins them to one file, koala_nt.py, that may be copied beside a program. The templates, the
rules and the state machine are those of the other modules of the room, which tests hold together; here no XML library
is needed, and a blocking socket does.

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

from koala_adapter.negotiation.applicationside.connection import (
    GREETING,
    Connection,
    accept,
    connect,
    connect_unix,
)
from koala_adapter.negotiation.applicationside.document import (
    build,
    parse,
)
from koala_adapter.negotiation.applicationside.endpoint import (
    Endpoint,
    Event,
)
from koala_adapter.negotiation.applicationside.frames import (
    HEADER_SIZE,
    frame,
    unframed,
)
from koala_adapter.negotiation.applicationside.machine import (
    AGAIN,
    BARGAINING,
    DISCONNECTED,
    ENDED,
    MESSAGES,
    RECEIVED,
    SAID,
    SENT,
)
from koala_adapter.negotiation.applicationside.messages import (
    Terms,
    accepted,
    committed,
    consumed,
    countered,
    decide,
    rejected,
    withdrawn,
)
from koala_adapter.negotiation.applicationside.rules import (
    completed,
    problem_of_closing,
    problem_of_counter,
)
from koala_adapter.negotiation.applicationside.values import (
    LARGEST_QUANTITY,
    LARGEST_TEMPLATE,
    LONGEST_ANSWER_TIME,
    LONGEST_REASON,
    MOST_RESOURCES,
    MOST_ROUNDS,
    NAMESPACE,
    OTHER_SIDE,
    STATUSES,
    NegotiationError,
    NegotiationStepError,
    Resource,
    Template,
    checked,
    resource,
    template,
)

__all__ = (
    "AGAIN",
    "BARGAINING",
    "DISCONNECTED",
    "ENDED",
    "GREETING",
    "HEADER_SIZE",
    "LARGEST_QUANTITY",
    "LARGEST_TEMPLATE",
    "LONGEST_ANSWER_TIME",
    "LONGEST_REASON",
    "MESSAGES",
    "MOST_RESOURCES",
    "MOST_ROUNDS",
    "NAMESPACE",
    "OTHER_SIDE",
    "RECEIVED",
    "SAID",
    "SENT",
    "STATUSES",
    "Connection",
    "Endpoint",
    "Event",
    "NegotiationError",
    "NegotiationStepError",
    "Resource",
    "Template",
    "Terms",
    "accept",
    "accepted",
    "build",
    "checked",
    "committed",
    "completed",
    "connect",
    "connect_unix",
    "consumed",
    "countered",
    "decide",
    "frame",
    "parse",
    "problem_of_closing",
    "problem_of_counter",
    "rejected",
    "resource",
    "template",
    "unframed",
    "withdrawn",
)
