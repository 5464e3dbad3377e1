# SPDX-License-Identifier: Apache-2.0
"""An adaptive program that asks for processors itself; as it stands on a node, and how a test has it run.

    python3 wishes.py DIRECTORY [WISH ...]

In a change the process of koala's number N says that it is done when there is no file `hold-N`.
The process of rank 0 makes one wish after the other, each when the one before is there, and writes what became of it;
all of them pass points until there is a file `stop` in the directory, which all of them share.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any


def main(directory: Path, wishes: list[str]) -> None:
    """Make the wishes, and go on."""
    import koala_app  # type: ignore[import-not-found]  # noqa: PLC0415 - it is there where this runs

    app = koala_app.join()
    if app.change is not None:
        done(app, directory)
    coming = False
    while not (directory / "stop").exists():
        if app.rank == 0 and wishes and not coming and (directory / "go").exists():
            kind, _, number = wishes.pop(0).partition("=")
            if kind == "give-back":
                answer = app.give_back(int(number))
            elif kind == "memory":  # of one more process
                answer = app.request(1, memory=int(number))
            else:
                answer = app.request(int(number), mandatory=kind == "mandatory")
            coming = answer.granted > 0
            print(json.dumps([kind, int(number), answer.granted, answer.reason]), flush=True)  # noqa: T201 - for the test
        change = app.point()
        if change is not None:
            done(app, directory)
            if change.rank is None:
                app.leave()
                return
            coming = False
            if change.rank == 0:
                print(json.dumps(["size", change.size]), flush=True)  # noqa: T201 - for the test
        time.sleep(0.05)
    app.close()


def done(app: Any, directory: Path) -> None:  # noqa: ANN401 - the library has no types here
    """Say that the change is carried out, when that is wanted."""
    while (directory / f"hold-{os.environ['KOALA_RANK']}").exists():
        time.sleep(0.05)
    app.done()


def write_wishes(directory: Path, *wishes: str, name: str, more: str) -> str:
    """Return the path of a job file; ``more``: further keys of its component. Its processes share a directory."""
    shared = directory / name
    shared.mkdir(exist_ok=True)
    program = directory / "wishes.py"
    program.write_bytes(Path(__file__).read_bytes())
    command = json.dumps(["python3", "wishes.py", str(shared), *wishes])
    path = directory / f"{name}.toml"
    path.write_text(
        f'name = "{name}"\nkind = "malleable"\nrunner = "adaptive"\nwalltime = 600\n'
        f'[[components]]\nname = "sum"\ncommand = {command}\ninput_files = ["wishes.py"]\n{more}'
    )
    return str(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
