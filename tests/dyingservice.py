# SPDX-License-Identifier: Apache-2.0
"""``koala`` that is killed as if by ``kill -9`` at one step of taking in a submission.

Called as a module with that step and the arguments of ``koala``; everything else of it is as it always is.
"""

from __future__ import annotations

import os
import signal
import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from koala_adapter.cli import main
from koala_adapter.driver.loop import EventLoop
from koala_adapter.scheduler.events import JobSubmitted
from koala_adapter.service.applications import Applications
from koala_adapter.service.journal import Journal
from koala_adapter.service.service import Service

if TYPE_CHECKING:
    from collections.abc import Callable


def of_a_submission(*arguments: Any) -> bool:  # noqa: ANN401 - of several methods
    """Tell whether an event is that of a submission."""
    return isinstance(arguments[0], JobSubmitted)


def always(*_: object) -> bool:
    """Tell that each call does."""
    return True


STEPS: dict[str, tuple[type, str, bool, Callable[..., bool]]] = {
    "before anything is done": (Service, "submit", True, always),
    "when it has a number": (Journal, "next_job_number", False, always),
    "when its input is kept": (Applications, "keep_input", False, always),
    "before its name is noted": (Journal, "note_submission", True, always),
    "when its name is noted": (Journal, "note_submission", False, always),
    "when it is in the journal": (EventLoop, "enter", False, of_a_submission),
    "before it is answered": (Service, "submit", False, always),
}
"""Method at which it is killed, whether before its call or after it, and at which calls."""


def die_at(step: str) -> None:
    """Have this process killed at a step."""
    owner, name, before, wanted = STEPS[step]
    method = getattr(owner, name)

    @wraps(method)
    def dying(self: object, *arguments: Any, **more: Any) -> Any:  # noqa: ANN401 - passed on
        meant = wanted(*arguments)
        if meant and before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = method(self, *arguments, **more)
        if meant:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, dying)


if __name__ == "__main__":
    die_at(sys.argv.pop(1))
    main()
