# SPDX-License-Identifier: Apache-2.0
"""A program that makes the calls it is told on standard input, one on a line, and says what came of each.

Run with the directory of koala_app.py as its argument. driver.c does the same with the library in C.
"""

import math
import sys
import time
from typing import Any

sys.path.insert(0, sys.argv[1])

import koala_app  # type: ignore[import-not-found]


def ranks(members: tuple[Any, ...]) -> str:
    return ",".join(str(one.rank) for one in members) or "-"


def shown(change: Any) -> str:  # noqa: ANN401 - the module is found at run time
    if change is None:
        return "nothing"
    return (
        f"change {change.number} at {change.at} old {ranks(change.old)} members {ranks(change.members)}"
        f" leaving {ranks(change.leaving)} joining {ranks(change.joining)}"
        f" rank {-1 if change.rank is None else change.rank}"
        f" old_rank {-1 if change.old_rank is None else change.old_rank} size {change.size} reason {change.reason}"
    )


def sized(size: int, offered: int) -> int:
    if abs(offered) == 3:
        return size + 99
    return size + offered // 2 if offered > 0 else size + offered


def wished(app: Any, words: list[str]) -> str:  # noqa: ANN401 - likewise
    if words[0] == "request":
        memory = int(words[words.index("memory") + 1]) if "memory" in words else 0
        answer = app.request(int(words[1]), mandatory="mandatory" in words, memory=memory)
    else:
        answer = app.give_back(int(words[1]))
    return f"granted {answer.granted} {answer.reason}".strip()


def looked_at(app: Any, words: list[str]) -> str:  # noqa: ANN401 - likewise
    if words[0] == "ending":  # now, or in a while
        while words[1:] and not app.ending:
            time.sleep(0.0002)
        left = app.time_left()
        return f"ending {int(app.ending)} left {-1 if left is None else math.ceil(left)}"
    return (
        f"rank {-1 if app.rank is None else app.rank} size {app.size} reached {app.reached}"
        f" contacts {' '.join(one.contact for one in app.members)} {shown(app.change)}"
    )


def called(app: Any, words: list[str]) -> str:  # noqa: ANN401, PLR0911 - likewise
    verb = words[0]
    if verb in {"request", "give_back"}:
        return wished(app, words)
    if verb == "point":
        return shown(app.point())
    if verb == "points":
        for _ in range(int(words[1])):
            app.point()
        return f"reached {app.reached}"
    if verb == "until":  # a change
        change = None
        while change is None:
            time.sleep(0.0002)  # a step
            change = app.point()
        return shown(change)
    if verb == "done":
        app.done()
        return f"done rank {-1 if app.rank is None else app.rank} size {app.size}"
    if verb == "leave":
        app.leave()
        return "left"
    if verb in {"ending", "state"}:
        return looked_at(app, words)
    raise ValueError(verb)


def main() -> None:
    app = None
    for line in sys.stdin:
        words = line.split()
        try:
            if words[0] == "join":
                app = koala_app.join(sized if words[1] == "function" else words[1], contact=" ".join(words[2:]))
                said = "joined"
            else:
                said = called(app, words)
        except koala_app.KoalaAppError as error:
            said = f"error {error}"
        sys.stdout.write(said + "\n")
        sys.stdout.flush()
    if app is not None:
        app.close()


main()
