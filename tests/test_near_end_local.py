# SPDX-License-Identifier: Apache-2.0
"""The end of the walltime comes near: programs are told, and workers leave, on local clusters.

The walltime is ten minutes, of which nobody waits for more than the first seconds: the warning comes that early.
"""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests.local_koala import Gate, Koala, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from tests.local_koala import Running

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.timeout(400)]

PROGRAM = """\
import os, sys, time
import koala_app

app = koala_app.join()
print("joined with", 0 < app.time_left() <= 600, flush=True)
while not app.ending:
    app.point()
    time.sleep(0.02)
print("told with", 0 < app.time_left() <= 595, flush=True)
while not os.path.exists(sys.argv[1]):
    app.point()
    time.sleep(0.02)
print("sizes stay", app.size, flush=True)
app.close()
"""


def ranks_printed(koala: Koala, component: str) -> list[list[str]]:
    """Return the lines of each process of a component of job 1."""
    found: list[Path] = sorted((koala.state / "jobs" / "1" / component).glob("*.out"))
    return [one.read_text().splitlines() for one in found]


def serving(koala: Koala) -> Running:
    """Return a service under which sizes change only when somebody asks for it."""
    site = koala.site_file.read_text()
    koala.site_file.write_text(site.replace("[scheduler]\n", '[scheduler]\napproach = "none"\n'))
    return koala.serve()


def submit(koala: Koala, runner: str, *components: str) -> None:
    """Submit a job that is warned in its first seconds."""
    path = koala.directory / "job.toml"
    header = f'kind = "malleable"\nrunner = "{runner}"\nwalltime = 600\nwarn_before = 595\n'
    path.write_text(header + "".join(f"[[components]]\n{one}\n" for one in components))
    koala.inside("submit", str(path))


def submit_program(koala: Koala, gate: Gate, program: str = PROGRAM) -> None:
    """Submit the program on two processes; it ends when the gate is open."""
    (koala.directory / "program.py").write_text(program)
    command = json.dumps(["python3", "program.py", str(gate.path)])
    more = 'minimum = 2\nmaximum = 3\ninput_files = ["program.py"]'
    submit(koala, "adaptive", f'name = "p"\ncommand = {command}\n{more}')


def test_a_program_is_told_and_a_restarted_service_tells_again(koala: Koala) -> None:
    """It knows its time from the beginning, hears that the end is near, goes on with its size, and ends by itself."""
    service = serving(koala)
    gate = Gate(koala.directory / "gate")
    submit_program(koala, gate)
    eventually(lambda: ranks_printed(koala, "p") == [["joined with True", "told with True"]] * 2)
    told = "2 of its processes have been told that the end of the walltime is near."
    eventually(lambda: told in koala.report("1").explanation)
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    koala.serve()
    eventually(lambda: told in koala.report("1").explanation)
    gate.open()
    eventually(lambda: koala.state_of("1") == "completed")
    assert [lines[-1] for lines in ranks_printed(koala, "p")] == ["sizes stay 2"] * 2


def test_a_program_knows_it_without_a_service(koala: Koala) -> None:
    """What it was told when it joined is enough; its file says so, as nobody takes its output."""
    service = serving(koala)
    gate, saved = Gate(koala.directory / "gate"), koala.directory / "saved"
    told = PROGRAM.replace('print("told with"', f'open({str(saved)!r} + str(app.rank), "w").close()\nprint("told with"')
    submit_program(koala, gate, told)
    eventually(lambda: ranks_printed(koala, "p") == [["joined with True"]] * 2)
    os.kill(service.pid, signal.SIGKILL)
    service.wait()
    eventually(lambda: all((koala.directory / f"saved{rank}").exists() for rank in range(2)))
    koala.serve()
    gate.open()
    eventually(lambda: koala.state_of("1") == "completed")


def test_workers_leave_before_they_are_killed(koala: Koala) -> None:
    """Each by the command of its job, whatever the minimum; the head goes on, and decides when the job is over."""
    serving(koala)
    gate = Gate(koala.directory / "gate")
    asked = f"{koala.directory}/asked-$KOALA_RANK"
    head = json.dumps(["sh", "-c", gate.wait])
    worker = json.dumps(["sh", "-c", f"until [ -e {asked} ]; do sleep 0.1; done; echo handed back"])
    retire = json.dumps(["sh", "-c", f"touch {asked}"])
    submit(
        koala,
        "workers",
        f'name = "head"\ncommand = {head}\nprocessors = 1',
        f'name = "w"\ncommand = {worker}\nminimum = 2\nmaximum = 3\nretire_grace = 600\nretire_command = {retire}',
    )
    eventually(lambda: ranks_printed(koala, "w") == [["handed back"]] * 2)
    eventually(lambda: koala.report("1").explanation.count("ended, near the end of the walltime") == 2)
    assert koala.state_of("1") == "running"
    gate.open()
    eventually(lambda: koala.state_of("1") == "completed")
    eventually(lambda: koala.placeholders() == [])
