# SPDX-License-Identifier: Apache-2.0
"""Asks for processors, takes what there is, and says what became of it: evolving.py HOST PORT TOKEN PROCESSORS."""

import sys

import koala_nt as nt

host, port, token, processors = sys.argv[1:]
connection = nt.connect(host, int(port), token)
wish = nt.resource("CPU", int(processors), minimum=2)
connection.send(nt.template("1", "APPLICATION", "node7", "head", [wish], direction="grow"))
while True:
    event = connection.recv()
    if event.kind == "closed":
        break
    print(event.kind, event.template.quantity("CPU"), event.reason)
    if event.kind == "offer":
        connection.send(nt.accepted(event.template))
    elif event.kind in ("consumed", "ended"):
        break
connection.close()
sys.exit(0 if event.kind == "consumed" else 1)
