# SPDX-License-Identifier: Apache-2.0
"""The program inside a placeholder: holds the processor, and runs on it what the control center asks for.

It dials out by TLS, compares the server's certificate with the pinned fingerprint before it says anything, proves
itself with the token of its batch, and from then on holds a lease: without contact for that time it ends itself and
everything it started. One selectors loop, no threads, nothing is waited for by sleeping.

The messages are those of koala_adapter/vjm/channel.py. Exit status: 0 released, 1 nothing to work with, 3 refused by
the control center, 4 lease over, 5 ended by the LRM or by its walltime.
"""

import gc
import json
import os

from koala_adapter.vjm.agent.holding import EXIT_UNUSABLE, Agent
from koala_adapter.vjm.agent.node import say
from koala_adapter.vjm.agent.ownoutput import own_output, remove_output
from koala_adapter.vjm.agent.settings import FatalError, Settings


def main(configuration: str) -> int:
    """Run with the configuration of the job script; return the exit status."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)  # the script came in by stdin, and with it the token
    os.close(nothing)
    try:
        os.waitpid(-1, os.WNOHANG)  # a shell such as dash leaves the process that wrote the script to our stdin
    except ChildProcessError:
        pass
    try:
        settings = Settings(json.loads(configuration), dict(os.environ))
        agent = Agent(settings)
        if hasattr(gc, "freeze"):  # since Python 3.7; what there is by now is never garbage
            gc.freeze()
        gc.enable()
        status = agent.run()
        if agent.heard:
            remove_output(own_output(settings.batch))
        return status
    except FatalError as error:
        say(str(error))
        return EXIT_UNUSABLE
