# SPDX-License-Identifier: Apache-2.0
"""The DRMAA helper process: ``python -m koala_drmaa.helper``. Requests come on stdin, results go to stdout, as lines.

It ends when its stdin is closed, so it cannot outlive the plugin that started it; a request that is being carried out
may first come to its end, so that the ids of a submission still reach the ledger.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from typing import TYPE_CHECKING

from koala_adapter.errors import ProtocolError
from koala_drmaa.protocol import LONGEST_LINE, NumberedResult, encode
from koala_drmaa.requestlines import decode_request
from koala_drmaa.session import HelperSession

if TYPE_CHECKING:
    from typing import BinaryIO

    from koala_drmaa.protocol import NumberedRequest

    Requests = queue.SimpleQueue[NumberedRequest | None]

LAST_REQUEST_SECONDS = 10.0
"""How long a request may still take after our parent has gone."""

EXIT_ORPHANED = 3
EXIT_GARBLED = 4


def main() -> int:
    """Answer requests until stdin ends."""
    results = _claim_stdout()
    requests: Requests = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), name="requests", daemon=True).start()
    session = HelperSession()
    while (request := requests.get()) is not None:
        result = session.answer(request.request)
        try:
            results.write(encode(NumberedResult(number=request.number, result=result)))
            results.flush()
        except OSError:
            break
    session.close()
    return 0


def _claim_stdout() -> BinaryIO:
    """Keep stdout for results alone: what libdrmaa prints goes to stderr."""
    descriptor = os.dup(1)
    os.dup2(2, 1)
    return os.fdopen(descriptor, "wb")


def _read(stream: BinaryIO, requests: Requests) -> None:
    """Read requests in a thread of its own, because the main one may be held up in a library call when stdin ends."""
    while line := stream.readline(LONGEST_LINE):
        try:
            requests.put(decode_request(line))
        except ProtocolError as error:
            print(error, file=sys.stderr, flush=True)  # noqa: T201 - stderr is our log
            os._exit(EXIT_GARBLED)
    requests.put(None)
    timer = threading.Timer(LAST_REQUEST_SECONDS, os._exit, (EXIT_ORPHANED,))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main())
