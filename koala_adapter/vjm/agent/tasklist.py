# SPDX-License-Identifier: Apache-2.0
"""All tasks of a placeholder: the control center's orders for them, and what they have to tell it."""

from binascii import a2b_base64

from koala_adapter.vjm.agent.connection import Channel
from koala_adapter.vjm.agent.launching import keep_descriptors
from koala_adapter.vjm.agent.streams import base64
from koala_adapter.vjm.agent.task import Task
from koala_adapter.vjm.agent.workplace import Workplace

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Dict, List, Set

    from koala_adapter.vjm.agent.application import ApplicationSocket

QUEUED = 128 * 1024  # bytes waiting for the socket, beyond which no more output is queued
REPORTS = 256  # ended tasks told again in each Hello


class TaskList:
    """Starts tasks, and sends their output, files and ends over the channel until they are safe there."""

    def __init__(self, channel: Channel, workplace: Workplace) -> None:
        self._channel = channel
        self._workplace = workplace
        self._tasks: "Dict[str, Task]" = {}
        self._forgotten: "Set[str]" = set()
        self._delivered = 0
        keep_descriptors()

    @property
    def complete(self) -> bool:
        """Whether all are over, and all that they wrote has been read."""
        return all(task.complete for task in self._tasks.values())

    @property
    def safe(self) -> bool:
        """Whether, besides, all their output and files were acknowledged."""
        return all(task.safe for task in self._tasks.values())

    @property
    def told(self) -> bool:
        """Whether, besides, the control center was told how each has ended."""
        return all(task.safe and task.reported for task in self._tasks.values())

    def reports(self) -> "List[Dict[str, Any]]":
        """Return what a Hello says of each task; what was not acknowledged is sent again after it."""
        return [self._report(task) for task in self._tasks.values()]

    def advance(self) -> None:
        """Do for each task what can be done by now."""
        for task in self._tasks.values():
            task.advance()

    def send(self) -> None:
        """Queue what the control center is to hear, as far as there is room."""
        for task in self._tasks.values():
            if task.application is not None:
                self._send_said(task.name, task.application)
            self._send_output(task)

    def look(self) -> None:
        """See which processes have ended."""
        for task in self._tasks.values():
            task.look()

    def stop(self, reason: str, detail: str, grace: float) -> None:
        """Ask all processes to end, and make them end ``grace`` seconds later: the placeholder must go."""
        if self._workplace.ending is None:
            self._workplace.ending = (reason, detail)
        for task in self._tasks.values():
            task.stop(reason, detail, grace)

    def clear(self) -> None:
        """Begin to remove what the tasks left, unless it is still to be sent."""
        if not any(task.keeps_files for task in self._tasks.values()):
            self._workplace.clear()

    def finish(self) -> None:
        """Kill all processes and remove what they left."""
        for task in self._tasks.values():
            task.kill()
        self._workplace.finish()

    def progress(self) -> bool:
        """Return whether files are on their way, and more of them have arrived since this was last asked."""
        delivered = sum(task.results.progress for task in self._tasks.values() if task.results is not None)
        more, self._delivered = delivered > self._delivered, delivered
        return more and any(task.delivering for task in self._tasks.values())

    # What the control center says

    def on_launch(self, message: "Dict[str, Any]") -> None:
        """Start a task, once, and say that it runs each time."""
        name = message["task"]
        task = self._tasks.get(name)
        if task is None and name not in self._forgotten:
            task = self._tasks[name] = Task(self._workplace, name)
            if self._workplace.ending:
                task.fail(self._workplace.ending[1], reason=self._workplace.ending[0])
            else:
                task.launch(message)
            self._forget()
        elif task is not None:
            task.reported = False
        if task is not None and task.pid is not None:
            self._channel.send({"kind": "task-started", "task": name, "pid": task.pid})

    def on_signal(self, message: "Dict[str, Any]") -> None:
        """Send a signal to a task."""
        task = self._tasks.get(message["task"])
        if task is not None:
            task.order(int(message["signal"]))

    def on_application(self, message: "Dict[str, Any]") -> None:
        """Hand a frame on to the process of a task; nobody may be there to read it."""
        task = self._tasks.get(message["task"])
        if task is not None and task.application is not None:
            task.application.tell(a2b_base64(message["data"]))

    def on_output_ack(self, message: "Dict[str, Any]") -> None:
        """Forget output that is safe."""
        task = self._tasks.get(message["task"])
        if task is not None:
            task.outputs[message["stream"]].acknowledge(int(message["offset"]))

    def on_resend(self, message: "Dict[str, Any]") -> None:
        """Send again what was not acknowledged of a stream."""
        task = self._tasks.get(message["task"])
        if task is not None:
            task.outputs[message["stream"]].rewind()
            task.reported = False
            self._channel.send({"kind": "resending", "task": task.name, "stream": message["stream"]})

    def on_file_ack(self, message: "Dict[str, Any]") -> None:
        """Take the answer to a piece of a file."""
        task = self._tasks.get(message["task"])
        if task is not None and task.results is not None:
            task.results.acknowledge(int(message["number"]), int(message["offset"]), message["refusal"])

    def on_files_ack(self, message: "Dict[str, Any]") -> None:
        """Know that all files of a task are safe."""
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
        message = task.results.next() if task.results is not None else None
        while message is not None:
            self._channel.send(message)
            message = task.results.next() if task.results is not None and self._channel.queued < QUEUED else None
        if task.tellable and not task.reported and not any(output.unsent for output in task.outputs.values()):
            task.reported = True
            self._channel.send({"kind": "task-ended", "task": task.name, "end": task.end})
