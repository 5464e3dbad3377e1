# SPDX-License-Identifier: Apache-2.0
"""The n-body programs on local clusters, as a user runs them: with the library, and without it."""

from __future__ import annotations

import json
import random
import time

import pytest

from koala_adapter.host.sockets import free_port
from tests.local_koala import Koala, eventually, kill_and_wait
from tests.nbody import ALONE, sizes_and_digest, write_nbody

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
MANY = 600
"""Steps of a program that is to be there when something else has happened, whatever the machine does meanwhile."""


KILLS = 12
"""How often the service is killed while a program runs."""


def printed(koala: Koala, job: str) -> str:
    """Return what the process of rank 0 printed."""
    path = koala.state / "jobs" / job / "bodies" / "0.out"
    return path.read_text(encoding="utf-8") if path.exists() else ""


def without_approach(koala: Koala, processors: int = 4) -> None:
    """Let sizes change only when a program asks for it; give each cluster so many processors."""
    text = koala.site_file.read_text()
    text = text.replace("[scheduler]\n", '[scheduler]\napproach = "none"\n')
    koala.site_file.write_text(text.replace("processors = 4", f"processors = {processors}"))


def test_evolving_programs_ask_for_more_and_end_as_the_rigid_one(koala: Koala) -> None:
    """Two on 2 processes get 2 more each, one of them by sockets and XML alone; the state is that of a rigid one.

    Where koala offers malleable jobs what is idle, it offers these nothing: their programs alone change their size.
    """
    koala.serve()
    running = [koala.start("run", write_nbody(koala.directory, name)) for name in ("evolving", "byhand")]
    for one in running:
        said, complaints = one.communicate(timeout=200)
        assert one.returncode == 0, said + complaints
    for job in ("1", "2"):
        assert "asked for 2, granted 2\n" in printed(koala, job)
        assert sizes_and_digest(printed(koala, job)) == ([2, 4], ALONE)
    koala.run("run", write_nbody(koala.directory, "rigid", ("28790", str(free_port())), rest=0))
    assert sizes_and_digest(printed(koala, "3")) == ([4], ALONE)


@pytest.mark.nightly
def test_an_evolving_program_takes_what_is_idle_of_what_it_asks_for(koala: Koala) -> None:
    """It asks for 14 more where 6 are idle, and runs on 8."""
    without_approach(koala, processors=8)
    koala.serve()
    koala.run(
        "run",
        write_nbody(
            koala.directory, "evolving", ('0.05", "2"', '0.05", "14"'), ("flexible = true", 'cluster = "alpha"')
        ),
    )
    assert "asked for 14, granted 6 (" in printed(koala, "1")
    assert sizes_and_digest(printed(koala, "1")) == ([2, 8], ALONE)


@pytest.mark.nightly  # a minute of steps, so that they are not over before it has grown
@pytest.mark.parametrize("library", ["koala_app", "byhand"])
def test_a_malleable_program_takes_what_makes_a_power_of_two(koala: Koala, library: str) -> None:
    """Beside a rigid job that leaves it 7 processors it is on 4; when that has ended, on 8."""
    koala.serve()
    end, rigid = koala.directory / "end", koala.directory / "one.toml"
    wait = json.dumps(["sh", "-c", f"until [ -e {end} ]; do sleep 0.2; done"])
    rigid.write_text(f'walltime = 300\n[[components]]\ncommand = {wait}\nprocessors = 1\ncluster = "alpha"\n')
    koala.inside("submit", str(rigid))
    eventually(lambda: koala.state_of("1") == "running")
    environment = ('"power-of-two" }', f'"power-of-two", NBODY_LIBRARY = "{library}" }}')
    running = koala.start("run", write_nbody(koala.directory, "malleable", environment, rest=0.1, steps=MANY))
    eventually(lambda: 4 in sizes_and_digest(printed(koala, "2"))[0])
    end.touch()
    said, complaints = running.communicate(timeout=300)
    assert running.returncode == 0, said + complaints
    koala.run("run", write_nbody(koala.directory, "rigid", ("28790", str(free_port())), rest=0, steps=MANY))
    sizes, digest = sizes_and_digest(printed(koala, "2"))
    assert digest == sizes_and_digest(printed(koala, "3"))[1]
    assert sizes[0] == 2
    assert sizes[-1] == 8
    assert set(sizes) <= {2, 4, 8}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(4))
def test_killed_services_change_no_bit_of_the_result(koala: Koala, seed: int) -> None:
    """Sizes are asked for, and the service is killed at any moment of a change and started again, a dozen times."""
    chance = random.Random(seed)
    service = koala.serve()
    file = write_nbody(koala.directory, "malleable", rest=0.1, steps=MANY)
    koala.inside("submit", file)
    eventually(lambda: koala.state_of("1") == "running")
    kills = 0
    while kills < KILLS and koala.state_of("1") == "running":
        koala.inside("resize", "1", str(chance.choice((2, 4, 8))), check=None)
        time.sleep(chance.uniform(0.0, 1.5))  # the moment of the kill
        kill_and_wait(service.pid)
        service = koala.serve()
        kills += 1
    eventually(lambda: koala.state_of("1") in {"completed", "failed"})
    assert koala.state_of("1") == "completed", printed(koala, "1")
    koala.run("run", write_nbody(koala.directory, "rigid", ("28790", str(free_port())), rest=0, steps=MANY))
    sizes, digest = sizes_and_digest(printed(koala, "1"))
    assert digest == sizes_and_digest(printed(koala, "2"))[1], f"sizes {sizes}, {kills} kills"
