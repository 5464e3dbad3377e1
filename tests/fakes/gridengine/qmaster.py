# SPDX-License-Identifier: Apache-2.0
"""The fake qmaster: ``python -m tests.fakes.gridengine.qmaster DIRECTORY`` starts jobs and notices their ends.

It ends when its stdin is closed, and deletes all jobs then.
"""

from __future__ import annotations

import select
import sys
from pathlib import Path

from tests.fakes.gridengine.engine import Engine

SCHEDULE_SECONDS = 0.05


def main() -> None:
    """Move time on until stdin ends."""
    engine = Engine(Path(sys.argv[1]))
    while not select.select([sys.stdin], [], [], SCHEDULE_SECONDS)[0]:
        with engine.locked() as state:
            engine.advance(state)
    with engine.locked() as state:
        for task in state.tasks:
            if not task.ended_at:
                engine.delete(task)


if __name__ == "__main__":
    main()
