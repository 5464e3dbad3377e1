# SPDX-License-Identifier: Apache-2.0
"""A service that runs by itself: started, killed, supervised, watched and measured."""

from __future__ import annotations

import csv
import json
import os
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPMessage

import pytest
from click.testing import CliRunner
from lxml import etree
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import koala_adapter
from koala_adapter.api.statedirectory import socket_path
from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.cli.koala import koala as main_command
from koala_adapter.host import metrics as catalogue
from koala_adapter.host.sockets import free_port
from tests.dyingservice import STEPS
from tests.json_shapes import deviations
from tests.local_koala import LIVENESS, Gate, Koala, Running, eventually

# -- A service in a real process, and the command that has started it.


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


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_closed_descriptors_make_no_second_owner(koala: Koala, closed: str) -> None:
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
        refused = CliRunner().invoke(main_command, [*options, *words])
        assert refused.exit_code == 245, (words, refused.stderr)
        assert f"runs on the site file {koala.site_file}, and not on {other}" in refused.stderr
        assert "koala serve --stop" in refused.stderr
    assert koala.state_of(id_) in {"waiting", "claiming", "launching", "running"}
    koala.run("cancel", id_)
    other.write_bytes(koala.site_file.read_bytes())
    assert koala.run("submit", koala.job("true")).returncode == 0


def test_a_signal_ends_a_service_that_is_about_to_read_its_site_file_again(koala: Koala) -> None:
    service = koala.serve()
    with socket.socket(socket.AF_UNIX) as client:  # for which the service waits a moment before it starts anew
        client.connect(str(socket_path(koala.state)))
        koala.client.reload()
        service.send_signal(signal.SIGTERM)
        eventually(lambda: service.poll() is not None)


def test_a_changed_site_file_is_told_and_read_again(koala: Koala) -> None:
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


# -- ``koala submit`` meets ``kill -9`` of the service: whenever that comes, there is one job, and its id is told.


IN_THE_JOURNAL = {"when it is in the journal", "before it is answered"}
BY_DAY = {"when it has a number", "when it is in the journal"}


@pytest.mark.parametrize(
    "step", [step if step in BY_DAY else pytest.param(step, marks=pytest.mark.nightly) for step in STEPS]
)
def test_a_job_that_is_submitted_while_the_service_is_killed_exists_once(koala: Koala, step: str) -> None:
    """The command starts the next service and sends the same submission again; the job runs once.

    Where it was in the journal, placeholders may have been submitted: the next service looks for them for long, which
    is not waited for.
    """
    ran = koala.directory / "ran"
    job = koala.job(f"echo $KOALA_RANK >> {ran}")
    service = subprocess.Popen(
        [sys.executable, "-m", "tests.dyingservice", step, *koala.options, "serve"],
        env=koala.environment,
        stdin=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        assert koala.client.wait_until_running(LIVENESS)
        told = json.loads(koala.run("submit", job, "--json").stdout)
        assert service.wait(LIVENESS) == -signal.SIGKILL
    finally:
        service.kill()
        service.wait()
    id_ = told["id"] if "id" in told else told["jobs"][0]["id"]
    assert [one.id for one in koala.client.jobs()] == [id_]
    if step in IN_THE_JOURNAL:
        koala.run("cancel", "--no-wait", id_)
    else:
        eventually(lambda: koala.report(id_).over)
        assert koala.report(id_).state == "completed"
        assert sorted(ran.read_text().split()) == ["0", "1"]
    koala.run("serve", "--stop")
    assert [one["id"] for one in koala.json("status")] == [id_]


# -- Servers that systemd has started tell it that they serve and that they live, in real processes.


@pytest.mark.parametrize("command", ["serve", "schedule --cluster alpha --shadow"])
def test_systemd_hears_of_a_server(koala: Koala, command: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        path = str(koala.directory / "n")
        supervisor.bind(path)
        supervisor.settimeout(LIVENESS)
        wanted = {"NOTIFY_SOCKET": path, "WATCHDOG_USEC": "600000"}
        server = subprocess.Popen(
            koala.command(*command.split()),
            env={**koala.environment, **wanted},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        koala.running.append(server)
        heard: list[bytes] = []
        while heard.count(b"WATCHDOG=1") < 3 or b"READY=1" not in heard:
            heard.append(supervisor.recv(100))
        assert set(heard) == {b"READY=1", b"WATCHDOG=1"}


# -- ``koala top`` on a terminal, beside a live service.


def read_until(terminal: int, wanted: str) -> str:
    """Return what comes on a terminal up to a text that must come."""
    seen = b""
    while wanted.encode() not in seen:
        assert select.select([terminal], [], [], LIVENESS)[0], seen
        seen += os.read(terminal, 65_536)
    return seen.decode(errors="replace")


def test_keys_explain_and_cancel_a_job(koala: Koala) -> None:
    """The job is shown; e says why, c and y cancel it, q ends and leaves the terminal as it was."""
    koala.serve()
    gate = Gate(koala.directory / "gate")
    job_id = koala.inside("submit", koala.job(gate.wait, name="watched")).stdout.split()[1]
    eventually(lambda: koala.state_of(job_id) == "running")
    process, terminal = koala.start_on_terminal("top", "--interval", "0.2")
    try:
        assert "alpha" in read_until(terminal, "watched")
        os.write(terminal, b"e")
        read_until(terminal, "has been running for")
        os.write(terminal, b"c")
        read_until(terminal, f"cancel job {job_id}?")
        os.write(terminal, b"n")
        os.write(terminal, b"c")
        read_until(terminal, f"cancel job {job_id}?")
        os.write(terminal, b"y")
        read_until(terminal, "cancelled")
        eventually(lambda: koala.state_of(job_id) == "cancelled")
        os.write(terminal, b"q")
        read_until(terminal, "\x1b[?1049l")
        assert process.wait(LIVENESS) == 0
    finally:
        os.close(terminal)


def test_it_needs_a_terminal_or_shows_itself_once(koala: Koala) -> None:
    assert "koala serve" in koala.inside("top", "--once", check=246).stderr
    koala.serve()
    refused = koala.run("top", check=245)
    assert "--once" in refused.stderr
    shown = koala.run("top", "--once").stdout
    assert "alpha" in shown
    assert "no jobs" in shown


# -- ``koala report`` of a job that has run.


def test_a_day_and_a_job_are_drawn(koala: Koala) -> None:
    """From the journal: a page, charts, and the jobs as data."""
    koala.run("run", koala.job("true", name="drawn", processors=2))
    for what in (["--since", "1d"], ["1"]):
        out = koala.directory / what[-1]
        assert str(out / "index.html") in koala.inside("report", *what, "--out", str(out)).stdout
        names = ("by-cluster", "by-job", "in-use")
        charts = [etree.fromstring((out / "figures" / f"{name}.svg").read_bytes()) for name in names]
        assert {chart.tag for chart in charts} == {"{http://www.w3.org/2000/svg}svg"}
        (job,) = csv.DictReader((out / "data" / "jobs.csv").read_text(encoding="utf-8").splitlines())
        assert (job["job"], job["name"], job["state"], job["processors"]) == ("1", "drawn", "completed", "4")
        told = (out / "data" / "clusters.csv").read_text(encoding="utf-8").splitlines()
        assert [row["cluster"] for row in csv.DictReader(told)] == ["alpha", "beta"]
    assert "found 'yesterday', allowed is" in koala.inside("report", "--since", "yesterday", check=2).stderr
    assert "Either JOB or --since" in koala.inside("report", check=2).stderr


# -- ``koala web``: what a browser gets.


def test_a_browser_is_told_of_changes_and_can_cancel(koala: Koala) -> None:
    """The journal at first, then the service live; events come, and a job is cancelled by its form."""
    pytest.importorskip("starlette")
    pytest.importorskip("uvicorn")
    koala.run("run", koala.job("true", name="over"))
    process = koala.start("web", "--allow-actions")
    assert process.stdout is not None
    found = re.fullmatch(r"(http://127\.0\.0\.1:(\d+))/\?(token=\S+)\n", process.stdout.readline())
    assert found is not None
    own, port, token = found.groups()
    connection = HTTPConnection("127.0.0.1", int(port), timeout=LIVENESS)

    def ask(path: str, method: str = "GET", body: str | None = None, **headers: str) -> tuple[str, HTTPMessage]:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.read().decode(), answer.headers

    _, told = ask(f"/?{token}")
    base, cookie = told["Location"], told["Set-Cookie"].partition(";")[0]
    page, _ = ask(base, Cookie=cookie)
    assert "from the journal: no service runs" in page
    koala.serve()
    events = HTTPConnection("127.0.0.1", int(port), timeout=LIVENESS)
    events.request("GET", f"{base}events", headers={"Cookie": cookie})
    lines = events.getresponse()
    assert next(line for line in lines if line.startswith(b"data:")) != b"data: no service\n"
    koala.run("submit", koala.job(Gate(koala.directory / "gate").wait, name="held"))
    assert next(line for line in lines if line.startswith(b"data:"))
    eventually(lambda: koala.client.job("2").state == "running")
    page, _ = ask(f"{base}jobs/2", Cookie=cookie)
    assert ", live</p>" in page
    proof = re.search(r'name="proof" value="(\w+)"', page)
    assert proof is not None
    _, told = ask(f"{base}jobs/2/cancel", "POST", f"proof={proof[1]}", Cookie=cookie, Origin=own)
    assert told["Location"] == f"{base}jobs/2"
    eventually(lambda: koala.client.job("2").state == "cancelled")
    koala.run("submit", koala.job("sleep 100", name="unfinished"))
    koala.run("serve", "--stop")
    page, _ = ask(f"{base}history?q=unfinished", Cookie=cookie)
    assert "1 job: " in page
    events.close()
    connection.close()
    process.send_signal(signal.SIGINT)
    assert process.wait(LIVENESS) == 0


# -- What live services tell of themselves, read as Prometheus reads it.


def told_port(process: Running) -> int:
    """Return the port on which a process says that it tells its metrics."""
    for line in process.stderr or ():
        found = re.search(r"metrics are told at http://127\.0\.0\.1:(\d+)/metrics", line)
        if found:
            return int(found[1])
    raise AssertionError("it says nothing of metrics")


def scrape(port: int) -> str:
    """Return what is told on a port."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and label values, in the order of the labels' names."""
    parse: Callable[[str], Iterator[Family]] = text_string_to_metric_families
    return {
        (one.name, *(one.labels[label] for label in sorted(one.labels))): one.value
        for family in parse(text)
        for one in family.samples
    }


def names(text: str) -> set[str]:
    """Return the names of the families that are told."""
    parse: Callable[[str], Iterator[Family]] = text_string_to_metric_families
    return {family.name for family in parse(text)}


def test_a_service_tells_what_became_of_a_job(koala: Koala) -> None:
    process = koala.start("serve", "--metrics-port", "0")
    port = told_port(process)
    koala.run("run", koala.job("true", name="innermost", processors=2))
    eventually(lambda: not koala.placeholders())
    text = scrape(port)
    found = samples(text)
    assert found["koala_info", "serve", koala_adapter.__version__] == 1
    assert found["koala_job_starts_total",] == 1
    assert found["koala_job_ends_total", "completed"] == 1
    assert found["koala_job_waiting_seconds_count",] == 1
    for cluster in ("alpha", "beta"):
        assert found["koala_placeholder_waiting_seconds_count", cluster] == 2
        assert found["koala_claiming_seconds_count", cluster] == 1
        assert found["koala_cluster_up", cluster] == 1
        assert found["koala_cluster_processors", cluster] == 4
        assert found["koala_lrm_command_seconds_count", cluster, "submit"] == 1
        assert found["koala_lrm_requests_total", cluster] > 0
        assert found["koala_lrm_requests_last_minute", cluster] > 0, "those of the test itself are in it, too"
        assert found["koala_lrm_requests_per_minute_bound", cluster] == 600
    assert names(text) <= {one.name for one in (*catalogue.COMMON, *catalogue.SERVE)}
    assert "innermost" not in text
    assert str(koala.directory) not in text
    by_command = samples(koala.inside("metrics").stdout)
    assert by_command["koala_job_starts_total",] == 1
    assert samples(koala.inside("metrics", "--port", str(port)).stdout)["koala_job_starts_total",] == 1
    refused = koala.inside("metrics", "--port", str(free_port()), check=246)
    assert "metrics cannot be read from port" in " ".join(refused.stderr.split())
    assert "--metrics-port" in refused.stderr


def test_a_shadow_tells_its_gains(koala: Koala) -> None:
    koala.submit_foreign("other", 2, "alpha")
    port = told_port(koala.start("schedule", "--cluster", "alpha", "--shadow", "--metrics-port", "0"))
    eventually(lambda: ("koala_lrm_command_seconds_count", "alpha", "jobs") in samples(scrape(port)))
    text = scrape(port)
    found = samples(text)
    assert found["koala_shadow_jobs", "alpha", "earlier"] == 0
    assert ("koala_shadow_gain_seconds", "alpha") in found
    assert names(text) <= {one.name for one in (*catalogue.COMMON, *catalogue.SCHEDULE)}


def test_a_wiki_server_counts_requests_and_refusals(koala: Koala) -> None:
    key = koala.directory / "key"
    key.write_text("77\n")
    key.chmod(0o600)
    wiki = ("--port", str(free_port()), "--key-file", str(key))
    more = ("--dialect", "wiki2", "--reply-within", "120")
    server = koala.start("wiki", "serve", "--cluster", "alpha", *wiki, *more, "--metrics-port", "0")
    port = told_port(server)
    eventually(lambda: koala.inside("wiki", "ask", *wiki, "GETNODES", "0:ALL", check=None).exit_code == 0)
    listed = json.loads(koala.inside("wiki", "ask", *wiki, "--json", "GETNODES", "0:ALL").stdout)
    assert deviations(listed, shape_schema("wiki-reply")) == []
    koala.inside("wiki", "ask", *wiki, "STARTJOB", "99", "TASKLIST=n1", check=247)
    text = scrape(port)
    found = samples(text)
    assert found["koala_wiki_request_seconds_count", "GETNODES"] == 2
    assert found["koala_wiki_request_seconds_count", "STARTJOB"] == 1
    assert found["koala_wiki_refusals_total", "STARTJOB"] == 1
    assert names(text) <= {one.name for one in (*catalogue.COMMON, *catalogue.WIKI)}
    assert "77" not in re.sub(r"[\d.]+(e[+-]\d+)?\n", "\n", text)
