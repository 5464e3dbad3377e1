# SPDX-License-Identifier: Apache-2.0
"""A service in a real process, and the command that has started it."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys

import pytest

from koala_adapter.host.sockets import free_port
from tests.local_koala import LIVENESS, Koala

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


SMALL = """
[[clusters]]
name = "gamma"
plugin = "local"
settings = { processors = 1 }
"""


def test_a_service_outlives_the_command_that_waits_for_it(koala: Koala) -> None:
    """Who started it may be killed before it is up: it serves all the same, and ends when it is told to."""
    reader, writer = os.pipe()
    os.close(reader)
    process = koala.start_anew("serve", "--ready-descriptor", str(writer), pass_fds=(writer,))
    os.close(writer)
    assert koala.client.wait_until_running(LIVENESS)
    koala.run("serve", "--stop")
    _, said = process.communicate(timeout=LIVENESS)
    assert process.returncode == 0, said
    assert "defect" not in said


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_make_no_second_owner(koala: Koala, closed: str) -> None:
    """The service that a command with closed descriptors starts owns the directory, and its log is a log."""
    command = shlex.join(koala.command("submit", koala.job("true")))
    done = subprocess.run(
        ["sh", "-c", f"exec {command} {closed}"],
        env=koala.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIVENESS,
    )
    assert (done.returncode, done.stderr.count("Traceback")) == (0, 0), done.stderr
    refused = koala.run("serve", check=246)
    assert "already owns" in refused.stderr
    koala.run("serve", "--stop")


def test_a_command_with_another_site_file_refuses(koala: Koala) -> None:
    """The service would run the job on clusters that the command does not know of; the way out is told."""
    other = koala.directory / "other.toml"
    other.write_text(koala.site_file.read_text().replace('"alpha"', '"gamma"'))
    koala.serve()
    id_ = koala.run("submit", koala.job("sleep 300")).stdout.split()[1]
    options = ["--site", str(other), "--state", str(koala.state)]
    program = ["-n", "1", "--", "true"]
    ask = [["status", id_], ["status"], ["status", "--watch"], ["explain", id_], ["logs", id_], ["negotiations"]]
    ask += [["plan", koala.job("true")], ["clusters"], ["top", "--once"]]
    change = [
        ["submit", *program],
        ["run", *program],
        ["resize", id_, "2"],
        ["cancel", id_],
        ["clean", "--older", "1d"],
    ]
    for words in (*ask, *change):
        refused = subprocess.run(
            [sys.executable, "-m", "koala_adapter.cli", *options, *words],
            env=koala.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=LIVENESS,
        )
        assert refused.returncode == 245, (words, refused.stderr)
        assert f"runs on the site file {koala.site_file}, and not on {other}" in refused.stderr
        assert "koala serve --stop" in refused.stderr
    assert koala.state_of(id_) in {"waiting", "claiming", "launching", "running"}
    koala.run("cancel", id_)
    other.write_bytes(koala.site_file.read_bytes())
    assert koala.run("submit", koala.job("true")).returncode == 0


def test_a_changed_site_file_is_told_and_read_again(koala: Koala) -> None:
    """The service goes on as before until it is told to read the file; one that is not valid changes nothing."""
    koala.serve()
    job_id = koala.run("submit", koala.job("sleep 300")).stdout.split()[1]
    assert f"the service runs on {koala.site_file}\n" in koala.run("status").stderr
    valid = koala.site_file.read_text()
    koala.site_file.write_text(valid + "[nonsense]\n")
    assert "has changed since: `koala serve --reload`" in koala.run("status").stderr
    assert "nonsense" in koala.run("serve", "--reload", check=245).stderr
    koala.site_file.write_text(valid.replace("scan_interval = 0.5", "scan_interval = 0.25") + SMALL)
    assert "has changed since the service read it" in koala.run("clusters").stderr
    assert "gamma" not in koala.run("clusters").stdout
    koala.run("serve", "--reload")
    assert "gamma" in koala.run("clusters").stdout
    assert "has changed" not in koala.run("status").stderr
    assert koala.state_of(job_id) in {"waiting", "claiming", "launching", "running"}
    koala.run("cancel", job_id)
    koala.run("serve", "--stop")


@pytest.mark.parametrize("section", ["control_center", "metrics"])
def test_a_site_file_with_which_the_service_cannot_start_is_refused(koala: Koala, section: str) -> None:
    """It is valid, and a port that it names is taken: the service goes on with the file as it was, its jobs likewise.

    While agents are out, a service waits long for the port of its control center: there is no job then.
    """
    process = koala.serve()
    ids = [koala.run("submit", koala.job("sleep 300")).stdout.split()[1]] if section == "metrics" else []
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        rest = koala.site_file.read_text() + SMALL
        if section == "metrics":
            koala.site_file.write_text(f"[metrics]\nport = {port}\n{rest}")
        else:
            koala.site_file.write_text(rest.replace("[control_center]\n", f"[control_center]\nport = {port}\n"))
        refused = koala.run("serve", "--reload", check=245)
        assert str(port) in refused.stderr
        assert "it goes on with the file as it was" in refused.stderr
        assert process.poll() is None
        assert {one.name for one in koala.client.clusters()} == {"alpha", "beta"}
        assert {koala.state_of(one) for one in ids} <= {"waiting", "claiming", "launching", "running"}
    koala.run("serve", "--reload")
    assert {one.name for one in koala.client.clusters()} == {"alpha", "beta", "gamma"}
    for one in ids:
        koala.run("cancel", one)
    koala.run("serve", "--stop")
