# SPDX-License-Identifier: Apache-2.0
"""Holding a processor: contact to the control center, lease, walltime, signals, the end, and the program.

The agent dials out by TLS, compares the server's certificate with the pinned fingerprint before it says anything,
proves its identity by the token of its batch, and from then on holds a lease: without contact for that time it ends
itself and everything that it started. There is one selectors loop, no thread, and no waiting by sleeping. A placeholder
without tasks needs only this module and what it imports; the rest is imported with the first task.

The messages are those of koala_adapter/vjm/channel.py. Exit status: 0 released, 1 nothing to work with, 3 refused by
the control center, 4 lease over, 5 ended by the LRM or by its walltime.
"""

import errno
import gc
import json
import os
import selectors
import signal
import socket
import sys

from koala_adapter.vjm.agent.connection import Channel
from koala_adapter.vjm.agent.node import (
    GRACE,
    AgentState,
    FatalError,
    Settings,
    clock,
    own_output,
    remove_output,
    say,
    word,
)

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Dict, Optional, Type

    from koala_adapter.vjm.agent.probe import Probes
    from koala_adapter.vjm.agent.task import TaskList


# -- The agent -----------------------------------------------------------------------------------------------

VERSION = 1
CONNECT_TIME = 20.0  # seconds for TCP, TLS and the answer to Hello
LONGEST_PAUSE = 6.0  # seconds between two tries to connect, give or take half: less than the center's patience
SPEAKING_PAUSE = 1.0  # that pause while a process speaks with koala, whose whole program may wait for its next word
SPEAKING_TIME = 60.0  # seconds without contact after which it is tried no more often than otherwise
LEAVING_PAUSE = 0.5  # that pause once the agent must go: it has GRACE and FLUSH for its last words
STEADY = 30.0  # seconds after which a connection counts as good, and the pauses start small again
MOST_IN_VAIN = 8  # messages of one kind in a row on which an agent cannot act, before it ends
PREPARE = 2.0  # seconds after which one that is held prepares for tasks, give or take half
FLUSH = 10.0  # seconds for the last output after the tasks are gone
FAREWELL = 2.0  # seconds for the control center to see the end of the connection
NEAR = 30.0  # a signal so many seconds before the end of the walltime is taken for that end
STOPPED = 2.0  # a wait that lasts so many seconds longer than asked for: the processes of the placeholder were stopped

EXIT_RELEASED, EXIT_UNUSABLE, EXIT_REFUSED, EXIT_LEASE, EXIT_ENDED = 0, 1, 3, 4, 5


def give_or_take_half(seconds: float) -> float:
    """Return a time varied by up to half, so that many agents do not act at once."""
    return seconds * (0.5 + ord(os.urandom(1)) / 256)


def pause_before_dialling(failures: int, silence: float, *, speaking: bool, leaving: bool) -> float:
    """Return the seconds until the next attempt to connect, varied by up to half.

    ``failures``: tries in a row that came to nothing. ``silence``: seconds without contact.
    """
    pause = min(LONGEST_PAUSE, 0.25 * 2.0 ** min(failures, 10))
    if speaking and silence < SPEAKING_TIME:
        pause = min(pause, SPEAKING_PAUSE)
    return min(pause, LEAVING_PAUSE) if leaving else pause


def for_tasks() -> "Type[TaskList]":
    """Import what tasks need, in an idle moment if there is one, as that takes half as long as the start."""
    from koala_adapter.vjm.agent.task import TaskList

    return TaskList


class Agent(AgentState):
    """The agent: connection, lease, walltime and tasks."""

    def __init__(self, settings: Settings) -> None:
        AgentState.__init__(self, settings)
        self._channel = Channel(settings, self.selector, self)
        self._tasks: "Optional[TaskList]" = None  # what they need is not even compiled before the first
        self._probes: "Optional[Probes]" = None  # likewise
        self._lease = settings.lease
        self._heartbeat = CONNECT_TIME
        self._contact = self._awake = clock()
        self._attempt = 0
        self._opened = 0.0
        self._failures = 0
        self._last_failure = ""
        self._in_vain: "Dict[str, int]" = {}  # how often each kind of message could not be acted on in a row
        self._welcomed = False
        self._leaving: "Optional[int]" = None  # the exit status to come
        self._mute = False  # nobody listens any more: do not wait for acknowledgements
        self._parting = False  # all is said, and the end of the connection on its way
        self._exit: "Optional[int]" = None

    def run(self) -> int:
        """Hold the processor until released or ended; return the exit status."""
        self._receive_signals()
        self._watch_lease()
        left = self._ends_in()
        if left is not None:
            self.timers.after(left - min(self.settings.end_margin, left / 2), self._walltime_ends)
        self._dial(self._attempt)
        try:
            while True:
                self.timers.run()
                self._advance()
                if self._exit is not None:
                    return self._exit
                wait = self.timers.wait()
                ready = self.selector.select(wait)
                self._see_stop(wait or 0.0)
                for key, mask in ready:
                    key.data(mask)
        finally:
            if self._tasks:
                self._tasks.finish()

    def _see_stop(self, waited: float) -> None:
        """Extend the lease by time in which this process was stopped; ``waited``: expected seconds.

        It may have passed anywhere since this was called last.
        """
        now = clock()
        stopped, self._awake = now - self._awake - waited, now
        if stopped > STOPPED and self.settings.await_suspended:
            say(f"goes on after about {stopped:.0f} s in which it was stopped")
            # There must be time to connect again, whatever passed before.
            self._contact = max(self._contact + stopped, now - self._lease + CONNECT_TIME)

    @property
    def heard(self) -> bool:
        """Whether the control center got everything, so that no final text in a file is needed."""
        return self._parting

    # The connection

    def opened(self) -> None:
        """Send Hello, as the connection is made."""
        settings = self.settings
        self._channel.send({
            "kind": "hello", "version": VERSION, "batch": settings.batch, "index": settings.index,
            "token": settings.token, "session": self.session, "lrm_id": settings.lrm_id,
            "host": word(socket.gethostname()), "address": word(self._channel.own_address()), "pid": os.getpid(),
            "ends_in": self._ends_in(), "python": ".".join(map(str, sys.version_info[:3])),
            "tasks": self._tasks.reports() if self._tasks else [], "resends": True,
        })  # fmt: skip

    def in_contact(self) -> None:
        """Renew the lease, as bytes have arrived."""
        self._contact = clock()

    def received(self, line: bytes) -> None:
        """Process a line from the control center.

        What makes no sense ends the connection, and the next one may be better. A message that cannot be acted on
        time after time ends the agent: the fault may be its own, and would never be seen.
        """
        kind = ""
        try:
            message = json.loads(line.decode())
            kind = message["kind"].replace("-", "_")
            act = getattr(self, "_on_" + kind, None) or getattr(self._tasks, "on_" + kind, None)
            if act is not None:  # a Pong only renews the lease, as any message does
                act(message)
            self._in_vain.pop(kind, None)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            self._in_vain[kind] = self._in_vain.get(kind, 0) + 1
            if self._in_vain[kind] >= MOST_IN_VAIN:
                raise FatalError(f"cannot act on {kind!r} of the control center: {error!r}") from error
            raise OSError(errno.EPROTO, f"the control center sent what makes no sense: {error!r}") from error
        self.in_contact()

    def closed(self, reason: str) -> None:
        """Schedule the next attempt to connect, as the connection ended or failed."""
        if self._welcomed and self._tasks:
            self._tasks.out_of_contact()
        good = self._welcomed and clock() - self._opened > STEADY
        self._failures = 1 if good else self._failures + 1
        self._attempt += 1
        self._welcomed = False
        if self._parting:
            self._depart()
        if self._mute or self._parting:
            return
        if reason != self._last_failure:
            self._last_failure = reason
            say(f"no connection to {self.settings.host}:{self.settings.port}: {reason}; trying again")
        pause = pause_before_dialling(
            self._failures,
            clock() - self._contact,
            speaking=bool(self._tasks and self._tasks.speaking),
            leaving=self._leaving is not None,
        )
        attempt = self._attempt
        self.timers.after(give_or_take_half(pause), lambda: self._dial(attempt))

    def _dial(self, after: int) -> None:
        if self._mute or after != self._attempt:
            return
        self._opened = clock()
        self._attempt += 1
        attempt = self._attempt
        self.timers.after(CONNECT_TIME, lambda: self._give_up_dialling(attempt))
        self._channel.dial()

    def _give_up_dialling(self, attempt: int) -> None:
        if attempt == self._attempt and not self._welcomed:
            self._channel.close("no answer")

    def _ends_in(self) -> "Optional[float]":
        return None if self.settings.ends_at is None else max(0.0, self.settings.ends_at - clock())

    # What the control center says

    def _on_welcome(self, message: "Dict[str, Any]") -> None:
        self._lease, self._heartbeat = float(message["lease"]), float(message["heartbeat"])
        self._welcomed = True
        self._last_failure = ""
        if self.ending:
            self._send_ending()
        if self._tasks:
            self._tasks.welcomed()
        attempt = self._attempt
        self.timers.after(self._heartbeat, lambda: self._beat(attempt))
        self.timers.after(give_or_take_half(PREPARE), for_tasks)

    def _on_refused(self, message: "Dict[str, Any]") -> None:
        self._leave(EXIT_REFUSED, "cancelled", f"the control center refused: {message['reason']}", GRACE, mute=True)

    def _on_probe_listen(self, message: "Dict[str, Any]") -> None:
        self._probing().listen(message)

    def _on_probe_reach(self, message: "Dict[str, Any]") -> None:
        self._probing().reach(message)

    def _probing(self) -> "Probes":
        if self._probes is None:
            from koala_adapter.vjm.agent.probe import Probes

            self._probes = Probes(self, self._channel)
        return self._probes

    def _on_launch(self, message: "Dict[str, Any]") -> None:
        if self._tasks is None:
            self._tasks = for_tasks()(self, self._channel)
        self._tasks.on_launch(message)

    def _on_release(self, message: "Dict[str, Any]") -> None:
        self._leave(EXIT_RELEASED, "cancelled", "released", float(message["grace"]))

    # The loop's work

    def _advance(self) -> None:
        room = True
        if self._tasks:
            self._tasks.advance()
            room = not self._welcomed or self._tasks.send()
        self._channel.flush()
        if not room and not self._channel.queued:
            # The connection has taken all of it: no event would have us go on with the rest.
            self.timers.after(0.0, lambda: None)
        if self._leaving is None or self._parting or (self._tasks and not self._tasks.complete):
            return
        if self._tasks:
            self._tasks.clear()  # at once, because whoever ends us may not wait until all is said
        if self._mute:
            self._exit = self._leaving
        elif self._welcomed and not self._channel.queued and (not self._tasks or self._tasks.told):
            self._parting = True
            self._channel.finish()
            self.timers.after(FAREWELL, self._depart)

    def _beat(self, attempt: int) -> None:
        if attempt != self._attempt:
            return
        if clock() - self._contact > 3 * self._heartbeat:
            self._channel.close("the control center has fallen silent")
            return
        self._channel.send({"kind": "heartbeat"})
        self.timers.after(self._heartbeat, lambda: self._beat(attempt))

    # Ends

    def _watch_lease(self) -> None:
        self._see_stop(0.0)
        left = self._contact + self._lease - self._awake
        if left > 0:
            self.timers.after(min(left, 30.0), self._watch_lease)
            return
        detail = f"no contact to the control center for {self._lease:g} s"
        say(f"{detail} (last: {self._last_failure or 'silence'}); this placeholder ends")
        self._leave(EXIT_LEASE, "lost", detail, FAREWELL, mute=True)

    def _walltime_ends(self) -> None:
        grace = min(GRACE, self.settings.end_margin / 2)
        self._leave(EXIT_ENDED, "walltime", "the walltime of the placeholder ends", grace)

    def _stopped_by(self, number: int) -> None:
        left = self._ends_in()
        name = signal.Signals(number).name
        if number == signal.SIGUSR1 and left is not None and left > NEAR:
            # Also Grid Engine's notice of a suspension (-notify); the end of the walltime needs no signal.
            say(f"got {name}, {left:.0f} s before the end of the walltime; goes on")
            return
        # SIGUSR1 and SIGXCPU announce a limit (Slurm --signal, Grid Engine s_rt and s_cpu); the others say only: go.
        limit = number in (signal.SIGUSR1, signal.SIGXCPU) or (left is not None and left < NEAR)
        self._leave(EXIT_ENDED, "walltime" if limit else "cancelled", f"the placeholder got {name}", GRACE)

    def _leave(self, code: int, reason: str, detail: str, grace: float, *, mute: bool = False) -> None:
        self._mute = self._mute or mute
        if self._leaving is None:
            self._leaving = code
            self.ending = (reason, detail)
            if code != EXIT_RELEASED:
                say(f"ending: {detail}")
                if self._welcomed and not mute:
                    self._send_ending()
            self.timers.after(grace + FLUSH, self._stop_waiting)
            if self._channel.closed:  # the time that is left may be shorter than the pause
                self._failures = 0
                self._dial(self._attempt)
        if self._tasks:
            self._tasks.stop(reason, detail, grace)

    def _send_ending(self) -> None:
        if self.ending and self._leaving != EXIT_RELEASED:
            self._channel.send({"kind": "ending", "reason": self.ending[0], "detail": self.ending[1]})

    def _stop_waiting(self) -> None:
        # Files go on as long as they make progress. Who released us may only be down for a while, as it is when it is
        # started anew: what it still wants waits for it as long as the lease lasts.
        progress = self._tasks is not None and self._tasks.progress()
        cut_off = not self._welcomed or clock() - self._opened < FLUSH
        away = self._leaving == EXIT_RELEASED and cut_off and self._tasks is not None and not self._tasks.safe
        if (away or progress) and not self._mute:
            self.timers.after(FLUSH, self._stop_waiting)
        else:
            self._depart()

    def _depart(self) -> None:
        if self._exit is None:
            self._exit = self._leaving

    def _receive_signals(self) -> None:
        reader, writer = os.pipe()
        for descriptor in (reader, writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(writer)
        for name in ("SIGCHLD", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGXCPU"):
            signal.signal(getattr(signal, name), lambda _number, _frame: None)
        self.selector.register(reader, selectors.EVENT_READ, lambda _mask: self._signals(os.read(reader, 512)))

    def _signals(self, numbers: bytes) -> None:
        for number in sorted(set(numbers), key=lambda number: number == signal.SIGCHLD):
            if number != signal.SIGCHLD:
                self._stopped_by(number)
        if self._tasks:
            self._tasks.look()


# -- The program ---------------------------------------------------------------------------------------------


def main(configuration: str) -> int:
    """Run the agent with the job script's configuration; return the exit status."""
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
