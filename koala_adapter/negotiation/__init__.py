# SPDX-License-Identifier: Apache-2.0
"""Negotiation of resources by templates in XML: the side of applications, in Python 3.6 and its standard library.

This package is the door for programs. ``koala app --install`` joins its modules to one file, koala_nt.py, that may be
copied beside a program. The templates, the rules and the state machine are those of
``koala_adapter.negotiation.serviceside``, the service's own side; tests compare the two. No XML library beyond expat
is needed here, and the socket blocks.

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

from koala_adapter.negotiation.connection import GREETING, Connection, accept, connect, connect_unix
from koala_adapter.negotiation.document import HEADER_SIZE, build, frame, parse, unframed
from koala_adapter.negotiation.endpoint import Endpoint, Event
from koala_adapter.negotiation.states import (
    AGAIN,
    BARGAINING,
    DISCONNECTED,
    ENDED,
    MESSAGES,
    RECEIVED,
    SAID,
    SENT,
    completed,
    problem_of_closing,
    problem_of_counter,
)
from koala_adapter.negotiation.templates import (
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
    Terms,
    accepted,
    checked,
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
]
