# SPDX-License-Identifier: Apache-2.0
"""Jobs that start after others have ended, on local clusters, by the installed command."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.local_koala import Koala


def test_a_chain_whose_middle_fails(koala: Koala) -> None:
    """What comes after it is cancelled with the reason, and what waits for its failure runs."""
    files = []
    for number, script in enumerate(["echo one", "exit 3", "echo three"], start=1):
        (file := koala.directory / f"{number}.toml").write_text(
            f'name = "part{number}"\nwalltime = "5m"\n'
            f'[[components]]\ncommand = ["sh", "-c", "{script}"]\nprocessors = 1\n'
        )
        files.append(str(file))
    koala.run("submit", "--chain", *files)
    koala.run("run", "--after", "part2:failed", "-n", "1", "--", "echo", "cleaned up")
    jobs = {job["name"]: job["state"] for job in json.loads(koala.run("status", "--json").stdout)}
    assert jobs == {"part1": "completed", "part2": "failed", "part3": "cancelled", "echo": "completed"}
    assert "it was to start only after job 2 had completed, and its state is failed" in koala.run("explain", "3").stdout


def test_jobs_before_that_are_not_there_or_ended_otherwise(koala: Koala) -> None:
    """Nothing is submitted; what has ended as asked for is waited for no longer."""
    koala.run("run", "-n", "1", "--", "false", check=1)
    done = koala.run("submit", "--after", "nosuch", "-n", "1", "--", "true", check=None)
    assert done.returncode
    assert "it is to start after job 'nosuch', which there is not" in done.stderr
    koala.run("run", "--after", "1:any", "-n", "1", "--", "true")


def test_notices_by_the_command_line(koala: Koala) -> None:
    """A site that does not say how to tell refuses it; else what the site file names gets each event, once."""
    refused = koala.run("run", "--notify", "end", "-n", "1", "--", "true", check=None)
    assert refused.returncode
    assert "write [notify] there" in refused.stderr
    told = koala.directory / "told"
    with koala.site_file.open("a") as site:
        site.write(f'\n[notify]\ncommand = ["sh", "-c", "cat >> {told}; echo >> {told}"]\n')
    wanted = ("--notify", "start", "--notify", "end", "--retries", "1")
    koala.run("run", *wanted, "-n", "1", "--", "false", check=1)
    events = [json.loads(line) for line in told.read_text().splitlines()]
    assert sorted((event["event"], event["state"]) for event in events) == [("end", "failed"), ("start", "launching")]
