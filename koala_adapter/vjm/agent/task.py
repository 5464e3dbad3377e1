# SPDX-License-Identifier: Apache-2.0
"""Tasks of a placeholder: one process from its launch to its last message, and the list of all of them."""

import binascii
import os
import signal
import socket

from koala_adapter.vjm.agent import setup
from koala_adapter.vjm.agent.connection import Channel
from koala_adapter.vjm.agent.node import GRACE, AgentState, clock, raw
from koala_adapter.vjm.agent.place import Workplace
from koala_adapter.vjm.agent.processes import (
    LaunchError,
    Output,
    Source,
    base64,
    keep_descriptors,
    kill_all,
    link_file,
    node_environment,
    oom_kills,
    signal_all,
    start,
    task_environment,
    write_file,
)
from koala_adapter.vjm.agent.results import Results
from koala_adapter.vjm.agent.usage import Counts, Usage, adopt_orphans, reap

TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import Any, Callable, Dict, List, Optional, Set, Tuple

    from koala_adapter.vjm.agent.application import ApplicationSocket
    from koala_adapter.vjm.agent.inputs import Inputs
    from koala_adapter.vjm.agent.relay import Relay

    Identity = Tuple[int, int, int]


# -- One task ------------------------------------------------------------------------------------------------

SETTLE = 0.5  # seconds in which the cause of a task's sudden death may show (our own SIGTERM, an oom kill)
DRAIN = 2.0  # seconds for what a task left behind to close its output
LONGEST_DETAIL = 500  # characters of why a task could not be started
PROMPT = 2.0  # seconds before its time limit, after which the good end of a task does not wait for its files


class Task:
    """A task: a process in its own session, with output and end."""

    def __init__(self, workplace: Workplace, name: str) -> None:
        self.name = name
        self.outputs = {"out": Output(), "err": Output()}
        self.end: "Optional[Dict[str, Any]]" = None
        self.reported = False
        self._workplace = workplace
        self._process: "Optional[Usage]" = None
        self._exited: "Optional[Tuple[float, Optional[int], Optional[int]]]" = None  # when, exit code, signal
        self._stopping: "Optional[Tuple[str, str]]" = None
        self._ordered: "Set[int]" = set()  # signals that the control center had sent
        self._sources: "List[Source]" = []
        self._directory: "Optional[str]" = None
        self._prompt = False
        self.inputs: "Optional[Inputs]" = None  # large input files, from the launch to the end
        self.gathering = False  # they are on their way
        self.begun = False  # the process was started after the launch, which is still to be told
        self.results: "Optional[Results]" = None  # once the task is over
        self._collect: "Optional[Callable[[], Results]]" = None
        self.application: "Optional[ApplicationSocket]" = None
        self.mark = b""  # what the environment of all its processes has
        self._oom_kills = oom_kills()
        self._setup_failure: "Callable[[int], Optional[Tuple[str, int]]]" = lambda _code: None

    @property
    def pid(self) -> "Optional[int]":
        """Process id while the task runs."""
        return self._process.pid if self._process and self.end is None else None

    @property
    def complete(self) -> bool:
        """Whether the task is over and all that it wrote has been read."""
        return self.end is not None and not self._sources

    @property
    def safe(self) -> bool:
        """Whether the task is complete, and all its output and files were acknowledged."""
        written = all(output.safe for output in self.outputs.values())
        return self.complete and written and not self.delivering and not self.speaks

    @property
    def speaks(self) -> bool:
        """Whether messages of its process to koala wait to be sent."""
        return self.application is not None and self.application.said

    @property
    def delivering(self) -> bool:
        """Whether output files wait to be sent or reported."""
        return self.results is not None and not self.results.safe

    @property
    def keeps_files(self) -> bool:
        """Whether its directory has files to be sent."""
        return self.results is not None and self.results.has_files

    @property
    def tellable(self) -> bool:
        """Whether its end may be reported: a good one after its files, a bad one at once."""
        heard = self.complete and not self.speaks
        return heard and (not self.patient or self.results is None or self.results.said)

    @property
    def patient(self) -> bool:
        """Whether its end is reported after all that it leaves: a good one, while its time limit is not near."""
        good = self.end is not None and self.end["reason"] == "exited" and self.end["exit_code"] == 0
        return good and not self._prompt

    @property
    def directory(self) -> str:
        """Its private directory, while it runs."""
        return self._directory or ""

    def launch(self, message: "Dict[str, Any]") -> None:
        """Start the process, or get its large input files first; a failure becomes the task's end."""
        self._attempt(lambda: self._launch(message))

    def _attempt(self, work: "Callable[[], None]") -> None:
        try:
            work()
        except LaunchError as error:
            self.fail(str(error), error.code)
        except (OSError, ValueError, TypeError, KeyError) as error:
            named = getattr(error, "filename", None)
            where = "" if named is None else f"{os.fsdecode(named)} on {socket.gethostname()}: "
            self.fail(f"cannot start: {where}{getattr(error, 'strerror', None) or error}", 126)

    def fail(self, detail: str, code: "Optional[int]" = None, reason: str = "launch failed") -> None:
        """Record that the process could not be started."""
        self.gathering = False
        for source in self._sources:
            source.close()
        self._collect = None
        self.end = {"reason": reason, "exit_code": code, "signal": None, "detail": detail[:LONGEST_DETAIL]}
        self._tidy()

    def stop(self, reason: str, detail: str, grace: float) -> None:
        """Ask the process to end, and make it end ``grace`` seconds later."""
        if self.gathering:
            self.fail(detail, reason=reason)
        if self.pid is None or self.look():
            return
        if not self._stopping:
            self._stopping = (reason, detail)
        self.signal(signal.SIGTERM, signal.SIGCONT)
        self._workplace.timers.after(grace, self.kill)

    def order(self, number: int) -> None:
        """Send a signal that the control center ordered, and remember that for the end."""
        self._ordered.add(number)
        if self.gathering:
            self.fail(f"got signal {number} before its input files had come", reason="cancelled")
        self.signal(number)

    def warn(self, number: int) -> None:
        """Send a signal to processes with a handler for it."""
        if self.pid is not None:
            signal_all(self.pid, self.mark, number, prepared=True)

    def signal(self, *numbers: int) -> None:
        """Send signals to all processes; the first is not reaped before the end, so that its id stays valid."""
        if self.pid is not None:
            signal_all(self.pid, self.mark, *numbers)

    def kill(self) -> None:
        """Kill all processes of the task."""
        if self.pid is not None:
            kill_all(self.pid, self.mark)

    def look(self) -> bool:
        """Return whether the process has exited; it stays a zombie until everything of its session is gone."""
        if self._exited is None and self.pid is not None:
            found = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                by_itself = found.si_code == os.CLD_EXITED
                status = (found.si_status, None) if by_itself else (None, found.si_status)
                self._exited = (clock(), *status)
                for pause in (SETTLE, DRAIN):
                    self._workplace.timers.after(pause, self.advance)
        return self._exited is not None

    def advance(self) -> None:
        """Handle an exit, and resume reading from pipes."""
        if self._exited is not None and self._process is not None and self.end is None:
            self._conclude(self._process, *self._exited)
        for source in self._sources:
            source.watch()
        if self._sources and all(source.closed for source in self._sources):
            self._sources = []
            if self._collect is not None:
                self.results = self._collect()
                self._workplace.work(self.results.collect())
        if self.complete and not self.keeps_files:
            self._tidy()

    def _conclude(self, process: Usage, when: float, code: "Optional[int]", number: "Optional[int]") -> None:
        since = clock() - when
        by = self._killed(code, number)
        if by and by not in self._ordered and not self._stopping and since < SETTLE:
            return
        if since < DRAIN and not all(source.fifo or source.closed for source in self._sources):
            return
        counts = self._workplace.orphans()
        process.end(counts)
        kill_all(process.pid, self.mark)
        counts.add(reap(process.pid) or Counts())
        if self.application is not None:
            self.application.finish()
        self._workplace.over(process.pid)
        self.end = self._describe(code, number)
        self.end["usage"] = process.told(counts)
        for source in self._sources:
            source.finish()

    def _describe(self, code: "Optional[int]", number: "Optional[int]") -> "Dict[str, Any]":
        reason, detail = ("exited", "") if number is None else ("signalled", "")
        if self._stopping:
            reason, detail = self._stopping
        elif self._killed(code, number) == signal.SIGKILL and oom_kills() > self._oom_kills:
            reason, detail = "memory", "killed by the kernel because the memory limit of its job was reached"
        elif self._killed(code, number) and self._workplace.agent.ending:
            reason, detail = self._workplace.agent.ending
        elif code is not None and code - 128 not in self._ordered:
            failed = self._setup_failure(code)
            if failed is not None:
                reason, detail, code = "launch failed", failed[0][:LONGEST_DETAIL], failed[1]
        return {"reason": reason, "exit_code": code, "signal": number, "detail": detail}

    @staticmethod
    def _killed(code: "Optional[int]", number: "Optional[int]") -> int:
        # A shell whose last command was killed ends by itself, and says so in this way.
        return number or max(0, (code or 0) - 128)

    def _launch(self, message: "Dict[str, Any]") -> None:
        self._directory = directory = self._workplace.new_directory()
        working_directory = message["working_directory"] or os.path.join(directory, "work")
        if message["working_directory"] is None:
            os.mkdir(working_directory, 0o700)
        elif not os.path.isdir(raw(working_directory)):
            raise LaunchError(f"the working directory {working_directory} does not exist on {socket.gethostname()}")
        inputs: "Dict[str, Identity]" = {}
        for file in message["files"]:
            if file.get("link"):  # a control center of an earlier version says nothing of it
                inputs[file["target"]] = link_file(working_directory, file["target"], file["link"])
            elif not file.get("digest"):  # likewise
                content = binascii.a2b_base64(file["content"])
                inputs[file["target"]] = write_file(working_directory, file["target"], file["mode"], content)
        if not any(file.get("digest") for file in message["files"]):
            self._begin(message, directory, working_directory, inputs)
            return
        from koala_adapter.vjm.agent.inputs import Inputs

        def begin(found: "Dict[str, Identity]", fault: str) -> None:
            """Start the process: its large input files have come, or there is a ``fault``."""
            if fault or self._directory is None:
                self.fail(fault)
                return
            self.gathering = False
            self._attempt(lambda: self._begin(message, directory, working_directory, {**inputs, **found}))
            self.begun = self.pid is not None

        self.gathering = True
        self.inputs = Inputs(self._workplace, message, working_directory)
        self.inputs.get(begin)

    def _begin(
        self, message: "Dict[str, Any]", directory: str, working_directory: str, inputs: "Dict[str, Identity]"
    ) -> None:
        """Start the process in its working directory; ``directory`` is its private one."""
        output_files = message.get("output_files")
        if output_files or (output_files is not None and not message["working_directory"]):
            self._collect = lambda: Results(self.name, working_directory, message, inputs)
        environment = task_environment(node_environment(), message["environment"])
        environment["PWD"] = working_directory
        library = self._serve_application(directory, message, environment)
        argv = message["argv"]
        lines = message.get("setup")  # a control center of an earlier version says nothing of it
        if lines:
            argv = self._set_up(directory, lines, argv, library, environment)
        self.mark = raw(f"KOALA_STDOUT={directory}/out\0")
        writers = []
        try:
            for name, variable in (("out", "KOALA_STDOUT"), ("err", "KOALA_STDERR")):
                environment[variable] = self._open_fifo(os.path.join(directory, name), self.outputs[name])
                reader, writer = os.pipe()
                writers.append(writer)
                self._sources.append(Source(self._workplace.selector, reader, self.outputs[name], fifo=False))
            pid = start(argv, working_directory, environment, writers)
            self._workplace.begun(pid)
            self._process = Usage(self._workplace.timers, pid, self.mark, environment)
        finally:
            for writer in writers:
                os.close(writer)
        if message["time_limit"] is not None:
            detail = f"the time limit of {message['time_limit']:g} s was reached"
            self._workplace.timers.after(message["time_limit"], lambda: self.stop("walltime", detail, GRACE))
            self._workplace.timers.after(max(0.0, message["time_limit"] - PROMPT), self._be_prompt)
        warning = message.get("warning")  # a control center of an earlier version says nothing of it
        if warning:
            self._workplace.timers.after(warning["after"], lambda: self.warn(warning["signal"]))

    def _set_up(
        self,
        directory: str,
        lines: "List[str]",
        argv: "List[str]",
        library: "Optional[str]",
        environment: "Dict[str, str]",
    ) -> "List[str]":
        """Return the shell command that runs setup lines and then the program."""
        state, words = os.path.join(directory, setup.STATE), self.outputs["err"]
        self._setup_failure = lambda code: setup.failure(state, argv, lines, code, words.tail)
        return setup.with_setup(argv, lines, state, library, environment)

    def _serve_application(
        self, directory: str, message: "Dict[str, Any]", environment: "Dict[str, str]"
    ) -> "Optional[str]":
        """Write the application library and listen for the process; return the library's directory if any."""
        files = message.get("library") or ()  # a control center of an earlier version says nothing of it
        library = os.path.join(directory, "library")
        if files:
            os.mkdir(library, 0o700)
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, (library, environment.get("PYTHONPATH"))))
        for file in files:
            write_file(library, file["target"], file["mode"], binascii.a2b_base64(file["content"]))
        if message.get("application"):
            from koala_adapter.vjm.agent.application import ApplicationSocket

            self.application = ApplicationSocket(self._workplace.selector, self._workplace.timers, directory)
            environment["KOALA_APP_SOCKET"] = self.application.path
        return library if files else None

    def _be_prompt(self) -> None:
        self._prompt = True

    def _open_fifo(self, path: str, output: Output) -> str:
        os.mkfifo(path, 0o600)
        # Opened for writing too, so that there is neither an end of file between two writers nor a wait for the first.
        self._sources.append(
            Source(self._workplace.selector, os.open(path, os.O_RDWR | os.O_NONBLOCK), output, fifo=True)
        )
        return path

    def _tidy(self) -> None:
        self._sources = []
        if self.application is not None:
            self.application.close()
        if self.inputs is not None:
            self.inputs.leave()
            self.inputs = None
        if self._directory:
            self._workplace.remove(self._directory)
            self._directory = None


# -- All tasks: orders of the control center, and reports to it ----------------------------------------------

QUEUED = 128 * 1024  # bytes waiting for the socket, beyond which no more output is queued
REPORTS = 256  # ended tasks told again in each Hello


class TaskList:
    """All tasks of an agent, with the sending of output, files and ends."""

    def __init__(self, agent: AgentState, channel: Channel) -> None:
        self._agent = agent
        self._channel = channel
        self._workplace = Workplace(agent)
        self._workplace.adopts = adopt_orphans()
        self._relay: "Optional[Relay]" = None  # once a task needs it
        self._tasks: "Dict[str, Task]" = {}
        self._forgotten: "Set[str]" = set()
        self._delivered = 0
        keep_descriptors()

    @property
    def complete(self) -> bool:
        """Whether all tasks are over, and all that they wrote has been read, and passed on to peers."""
        over = all(task.complete for task in self._tasks.values())
        return over and (self._relay is None or not self._relay.passing_on())

    @property
    def safe(self) -> bool:
        """Whether all tasks are complete and all output and files were acknowledged."""
        return all(task.safe for task in self._tasks.values())

    @property
    def told(self) -> bool:
        """Whether all tasks are safe and their ends reported."""
        return all(task.safe and task.reported for task in self._tasks.values())

    @property
    def speaking(self) -> bool:
        """Whether a process may be waiting for the control center."""
        return any(task.application is not None and not task.complete for task in self._tasks.values())

    def out_of_contact(self) -> None:
        """Tell processes with a link to koala that it is out of reach."""
        for task in self._tasks.values():
            if task.application is not None:
                task.application.out_of_contact()

    def reports(self) -> "List[Dict[str, Any]]":
        """Return the reports on tasks for a Hello; unacknowledged data is sent again after it."""
        for task in self._tasks.values():
            if task.inputs is not None:
                task.inputs.rewind()
        # One whose files are on their way would be taken for one that runs, or did.
        return [self._report(task) for task in self._tasks.values() if not task.gathering]

    def advance(self) -> None:
        """Handle exits and resume reading for all tasks."""
        for task in self._tasks.values():
            task.advance()
        self._follow_relayed()

    def _follow_relayed(self) -> None:
        """Tell the relay of processes that have started, and of tasks that are over."""
        if self._relay is None:
            return
        for name in self._relay.tasks:
            task = self._tasks[name]
            if task.end is not None:
                self._relay.end(name)
            elif task.pid is not None:
                self._relay.started(name, task.pid, task.mark)

    def send(self) -> bool:
        """Queue messages to the control center while there is room, and tell whether there was room for all."""
        for task in self._tasks.values():
            if task.application is not None:
                self._send_said(task.name, task.application)
            if task.gathering and task.inputs is not None:
                for question in iter(task.inputs.next, None):
                    self._channel.send(question)
            if task.begun:
                task.begun = False
                self._channel.send({"kind": "task-started", "task": task.name, "pid": task.pid})
            self._send_output(task)
        return self._channel.queued < QUEUED

    def look(self) -> None:
        """Find processes that have ended."""
        for task in self._tasks.values():
            task.look()
        self._workplace.see_to_orphans()

    def stop(self, reason: str, detail: str, grace: float) -> None:
        """Ask all processes to end, and make them end ``grace`` seconds later: the placeholder must go."""
        for task in self._tasks.values():
            task.stop(reason, detail, grace)

    def clear(self) -> None:
        """Start removing what tasks left, except what is still to be sent."""
        if not any(task.keeps_files for task in self._tasks.values()):
            self._workplace.clear()

    def finish(self) -> None:
        """Kill all processes and remove all that they left."""
        for task in self._tasks.values():
            task.kill()
            if task.inputs is not None:
                task.inputs.leave()
        if self._relay is not None:
            self._relay.finish()
        self._workplace.finish()

    def progress(self) -> bool:
        """Return whether files are being sent and more have arrived since the last call."""
        delivered = sum(task.results.progress for task in self._tasks.values() if task.results is not None)
        more, self._delivered = delivered > self._delivered, delivered
        return more and any(task.delivering for task in self._tasks.values())

    # What the control center says

    def on_launch(self, message: "Dict[str, Any]") -> None:
        """Start a task if it is new, and report that it runs."""
        name = message["task"]
        task = self._tasks.get(name)
        if task is None and name not in self._forgotten:
            task = self._tasks[name] = Task(self._workplace, name)
            if self._agent.ending:
                task.fail(self._agent.ending[1], reason=self._agent.ending[0])
            else:
                self._launch(task, message)
            self._forget()
        elif task is not None:
            task.reported = False
        if task is not None and task.pid is not None:
            self._channel.send({"kind": "task-started", "task": name, "pid": task.pid})

    def _launch(self, task: Task, message: "Dict[str, Any]") -> None:
        relayed, forwards = message.get("relayed"), message.get("forwards")
        if not relayed and not forwards:  # a control center of an earlier version says nothing of them
            task.launch(message)
            return
        if self._relay is None:
            from koala_adapter.vjm.agent.relay import Relay

            agent = self._agent
            self._relay = Relay(agent.settings, agent.selector, agent.timers, self._channel, agent.session)
        self._relay.expect(task.name, forwards or [], told=bool(relayed))
        task.launch(message)

    def welcomed(self) -> None:
        """Tell the control center what it may have forgotten."""
        if self._relay is not None:
            self._relay.tell_again()

    def on_forward(self, message: "Dict[str, Any]") -> None:
        """Listen for a peer of tasks."""
        if self._relay is not None:
            self._relay.forward(message)

    def on_tunnel(self, message: "Dict[str, Any]") -> None:
        """Connect a peer to a port of a task."""
        if self._relay is not None:
            self._relay.tunnel(message)

    def on_signal(self, message: "Dict[str, Any]") -> None:
        """Send a signal to a task."""
        task = self._tasks.get(message["task"])
        if task is not None:
            task.order(int(message["signal"]))

    def on_application(self, message: "Dict[str, Any]") -> None:
        """Pass a frame to the process of a task, if connected."""
        task = self._tasks.get(message["task"])
        if task is not None and task.application is not None:
            task.application.tell(binascii.a2b_base64(message["data"]))

    def on_output_ack(self, message: "Dict[str, Any]") -> None:
        """Drop output that the center has stored."""
        task = self._tasks.get(message["task"])
        if task is not None:
            task.outputs[message["stream"]].acknowledge(int(message["offset"]))

    def on_resend(self, message: "Dict[str, Any]") -> None:
        """Send unacknowledged output of a stream again."""
        task = self._tasks.get(message["task"])
        if task is not None:
            task.outputs[message["stream"]].rewind()
            task.reported = False
            self._channel.send({"kind": "resending", "task": task.name, "stream": message["stream"]})

    def on_file_ack(self, message: "Dict[str, Any]") -> None:
        """Process the answer to a piece of a file."""
        task = self._tasks.get(message["task"])
        if task is not None and task.results is not None:
            number, offset = int(message["number"]), int(message["offset"])
            task.results.acknowledge(number, offset, message["refusal"], again=bool(message.get("again")))

    def on_input(self, message: "Dict[str, Any]") -> None:
        """Take a piece of an input file."""
        task = self._tasks.get(message["task"])
        if task is not None and task.inputs is not None:
            task.inputs.take(message)

    def on_files_ack(self, message: "Dict[str, Any]") -> None:
        """Mark all files of a task as safe."""
        task = self._tasks.get(message["task"])
        if task is not None and task.results is not None:
            task.results.safe = True

    def _forget(self) -> None:
        # A long life with many tasks must not grow for ever: the oldest ends were heard by the center long ago.
        safe = [task for task in self._tasks.values() if task.safe and task.reported]
        for task in safe[: max(0, len(self._tasks) - REPORTS)]:
            del self._tasks[task.name]
            self._forgotten.add(task.name)

    @staticmethod
    def _report(task: Task) -> "Dict[str, Any]":
        task.reported = task.safe
        for output in task.outputs.values():
            output.rewind()
        if task.results is not None:
            task.results.rewind()
        return {"task": task.name, "running": task.pid is not None, "end": task.end if task.safe else None}

    def _send_said(self, name: str, application: "ApplicationSocket") -> None:
        if application.said and self._relay is not None:
            self._relay.look()  # it may tell the others where it listens
        while application.said and self._channel.queued < QUEUED:
            self._channel.send({"kind": "application", "task": name, "data": base64(application.next())})

    def _send_output(self, task: Task) -> None:
        for stream, output in task.outputs.items():
            while output.unsent and self._channel.queued < QUEUED:
                offset, data = output.next()
                text = base64(data)
                self._channel.send(
                    {"kind": "output", "task": task.name, "stream": stream, "offset": offset, "data": text}
                )
        found = task.results.next() if task.results is not None else None
        while found is not None:
            message, data = found
            self._channel.send(message, data)
            found = task.results.next() if task.results is not None and self._channel.queued < QUEUED else None
        if task.reported or not task.tellable or any(output.unsent for output in task.outputs.values()):
            return
        # With the end of the last one of a job its relayed connections end.
        if not task.patient or self._relay is None or not self._relay.passing_on(task.name):
            task.reported = True
            self._channel.send({"kind": "task-ended", "task": task.name, "end": task.end})
