# SPDX-License-Identifier: Apache-2.0
"""Commands that serve: the service, the outside scheduler, negotiation, and their systemd units."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Generator
from configparser import RawConfigParser
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from hypothesis import given
from lxml import etree

from koala_adapter.api.client import Client
from koala_adapter.cli import schedule as ordertext
from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.cli.koala import koala
from koala_adapter.cli.run import _resumed, run_job
from koala_adapter.cli.schedule import parse_weights
from koala_adapter.cli.session import Session
from koala_adapter.config.jobfile import load_job_text
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import EndReason, Job, JobId, LrmJobId
from koala_adapter.negotiation import Resource, Template, build
from koala_adapter.negotiation.schema import to_object
from koala_adapter.ordering.asking import Explanation, Overview
from koala_adapter.ordering.jobs import JobEvent, JobEventKind
from koala_adapter.ordering.shadow import Difference, ShadowReport
from koala_adapter.outcome import JobOutcome, JobState
from koala_adapter.queueing.queue import PriorityWeights
from koala_adapter.report.values import JobReport
from koala_adapter.service.sweepfiles import FOLDER, SweepFiles
from tests.json_shapes import deviations
from tests.unit.api.jobreports import job_report
from tests.unit.negotiation.templates import PUBLISHED, full, templates

# -- What ``koala run`` and ``koala sweep`` do with interrupts and with sweeps that go on.


SWEEP = """
walltime = 60
kind = "malleable"
runner = "sweep"
[[components]]
command = ["p", "{a}"]
minimum = 4
maximum = 9
[sweep]
repeats = 1
[sweep.parameters]
a = "1..10"
"""


class Interrupted(Client):
    """A service whose watcher is interrupted after a report."""

    def __init__(self, directory: Path, report: JobReport) -> None:
        super().__init__(directory)
        self.report = report
        self.cancelled: list[str] = []

    def running(self) -> bool:
        return True

    def submit(self, job: Job, *, begin: Callable[[], object] | None = None) -> str:
        del job, begin
        return self.report.id

    def cancel(self, job_id: str) -> JobReport:
        self.cancelled.append(job_id)
        return self.report

    def follow(self, job_id: str, *, patience: float, on_lost: Callable[[], None]) -> Generator[JobReport, None, None]:
        """Tell the report, then be interrupted; after a cancellation the job is over."""
        del job_id, patience, on_lost
        if self.cancelled:
            yield replace(self.report, placeholders_left=0, concluded=True)
            return
        yield self.report
        raise KeyboardInterrupt


@pytest.mark.parametrize("ended", [True, False])
def test_an_interrupt_after_the_end_cancels_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, ended: bool
) -> None:
    """The job has its result already; what is left of it is seen to without the command."""
    outcome = JobOutcome(state=JobState.COMPLETED, reason=EndReason.EXITED, exit_code=0) if ended else None
    state = JobState.COMPLETED if ended else JobState.RUNNING
    report = job_report(state=state, outcome=outcome, placeholders_left=2, output_directory=str(tmp_path))
    session = Session(site_option=None, state_option=tmp_path)
    client = Interrupted(tmp_path, report)
    session.here.client = client
    job = load_job_text(SWEEP, directory=tmp_path, job_id=JobId("0"), user="u", submitted_at=0.0)
    last = run_job(session, job, quiet=False)
    assert (client.cancelled, last.outcome) == ([] if ended else [report.id], outcome)
    assert ("cancelling job" in capsys.readouterr().err) is not ended


def test_a_resumed_sweep_takes_new_bounds(tmp_path: Path) -> None:
    """Also the number of new tries and the time to end; a size that cannot be is refused."""
    job = load_job_text(SWEEP, directory=tmp_path, job_id=JobId("12"), user="u", submitted_at=0.0)
    SweepFiles(tmp_path / "jobs" / "12" / FOLDER).keep(job)
    session = Session(site_option=None, state_option=tmp_path)
    resumed = _resumed(session, "12", maximum=5, repeats=3, grace=9)
    assert resumed.sweep is not None
    assert (resumed.sweep.repeats, resumed.components[0].retirement.grace, resumed.components[0].maximum) == (3, 9, 5)
    same = _resumed(session, "12")
    assert same.sweep is not None
    assert (same.sweep.repeats, same.components) == (1, job.components)
    with pytest.raises(ConfigurationError, match="-n: found 2, but the sweep of job 12 has at least 4"):
        _resumed(session, "12", maximum=2)


# -- What ``koala schedule`` takes and says: weights, refusals with a way out, and lines that people understand.


def test_weights_are_read() -> None:
    """By their names, in any order; without any the order is that of arrival."""
    assert parse_weights("") == PriorityWeights()
    found = parse_weights("share=7200, processors=-10,half-life=3600")
    assert found == PriorityWeights(processors=-10, share=7200, half_life=3600)


@pytest.mark.parametrize(
    ("text", "said"),
    [("size=1", "no weight 'size'"), ("share", "is not NAME=NUMBER"), ("half-life=0", "must be above 0")],
)
def test_wrong_weights_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        parse_weights(text)


SITE = """
[[clusters]]
name = "a"
plugin = "local"
[clusters.settings]
"""


def run(directory: Path, *arguments: str) -> tuple[int, str]:
    site = directory / "site.toml"
    site.write_text(SITE)
    argv = ["--site", str(site), "--state", str(directory / "state"), *arguments]
    result = CliRunner().invoke(koala, argv)
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("schedule", "--cluster", "b"), 245, "no cluster 'b'; there are: a"),
        (("schedule", "--cluster", "a", "--policy", "magic"), 2, "'magic' is not one of"),
        (("schedule", "--cluster", "a", "--depth", "0"), 2, "0 is not in the range"),
        (("schedule", "--cluster", "a", "--weights", "size=1"), 245, "queue-time"),
        (("schedule",), 2, "Missing option"),
        (("schedule", "--cluster", "a", "--shadow", "--ask-socket", "/run/a"), 2, "--ask-socket or --shadow"),
        (("schedule", "--give-back", "a", "--cluster", "b"), 2, "give it or --cluster"),
        (("explain", "b:1"), 245, "no cluster 'b'; there are: a"),
        (("explain", "a:1"), 246, "koala schedule --cluster a"),
        (("explain", "1", "--cluster", "a"), 246, "koala schedule --cluster a"),
    ],
)
def test_refusals(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    found, output = run(tmp_path, *arguments)
    assert found == code
    assert said in " ".join(output.split())


@pytest.mark.parametrize("terminal", [True, False])
def test_log_is_shown_where_there_is_no_screen(monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    """As a system unit it says on standard error what it could not do; on a terminal its screen is there."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert koala.callback is not None
    with click.Context(koala) as context:
        context.invoked_subcommand = "schedule"
        context.invoke(koala.callback, site=None, state=None, verbose=False)
        assert context.obj.log_shown is not terminal


def test_lines_of_what_happened() -> None:
    one = JobEvent(
        time=1e9,
        kind=JobEventKind.START,
        job_id=LrmJobId("7"),
        user="kim",
        processors=6,
        detail="as well",
        nodes=(("n4", 3), ("n2", 3)),
    )
    assert "start        7         kim       6 processors  on n4:3,n2:3; as well" in ordertext.line(one)
    reserved = JobEvent(time=1e9, kind=JobEventKind.RESERVED, job_id=LrmJobId("8"), processors=1, at=1e9)
    assert "1 processor  at 2001-09-09" in ordertext.line(reserved)
    assert {ordertext.style(one), ordertext.style(reserved)} == {"cyan", "magenta"}


@pytest.mark.parametrize(
    ("phase", "values", "said"),
    [
        ("running", {"nodes": (("n1", 4),), "started_at": 1e9}, "It runs on n1:4 since 2001-09-09"),
        ("starting", {"nodes": (("n1", 4),)}, "It is being started on n1:4."),
        ("left out", {"reason": "its user holds it"}, "It waits, and is not in the queue: its user holds it."),
        ("waiting", {"reason": "r", "position": 2, "queued": 9}, "It waits, place 2 of 9 in the queue: r."),
        ("waiting", {"reserved_at": 1e9, "promised_at": 1e9 + 9}, "The first start reserved for it was 2001-09-09"),
        ("left out", {"estimate_assumed": True}, "60 s (assumed: no limit of its run time is known)"),
    ],
)
def test_explanations_in_words(phase: str, values: dict[str, object], said: str) -> None:
    given = {"job_id": "7", "user": "kim", "name": "cfd", "processors": 4, "reason": "", "estimate": 60, **values}
    found = Explanation(phase=phase, **given)  # type: ignore[arg-type]
    text = "\n".join(ordertext.explanation(found, "a"))
    assert text.startswith("job 7 (cfd) of kim on a: 4 processors for at most 60 s")
    assert said in text


def test_the_status_in_one_line() -> None:
    found = Overview(processors=32, free=8, waiting=3, running=2, starting=1, left_out=4)
    assert ordertext.status("a", found, None) == (
        "a: 24 of 32 processors used, 2 running, 1 starting, 3 waiting, 4 left out"
    )
    assert "does not answer: gone" in ordertext.status("a", found, "gone")


def test_the_report_of_a_shadow_in_words() -> None:
    job = Difference(job_id="9", processors=8, theirs=None, ours=1e9)
    report = ShadowReport(
        since=0.0,
        until=100.0,
        jobs=3,
        earlier=1,
        later=0,
        same=2,
        mean_wait_ours=4.2,
        mean_wait_theirs=8.4,
        left_out=4,
        first_earlier=(job,),
        first_later=(),
    )
    text = "\n".join(ordertext.shadow_report(report))
    assert "1 of them starts earlier, 0 later, 2 at the same time" in text
    assert "4.2 s with this policy, 8.4 s with the batch system" in text
    assert "batch system  not yet" in text
    assert "4 jobs are not counted: in hold" in text


# -- ``koala negotiation``: the schemas come out whole, and a document is a template or refused in a sentence.


def invoke(*arguments: object, given: bytes = b"") -> tuple[int, str, str]:
    result = CliRunner().invoke(koala, ["negotiation", *map(str, arguments)], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout, result.stderr


def test_the_printed_schemas_validate(tmp_path: Path) -> None:
    """Saved under the names by which they are known, they accept the published instance and one of ours."""
    for name, options in (("NT.xsd", []), ("NT-koala.xsd", ["--extension"])):
        code, output, _ = invoke("schema", *options)
        assert code == 0
        (tmp_path / name).write_text(output, encoding="utf-8")
    schema = etree.XMLSchema(etree.parse(tmp_path / "NT.xsd"))
    assert schema.validate(etree.fromstring(PUBLISHED))
    assert schema.validate(etree.fromstring(build(full())))
    assert not schema.validate(etree.fromstring(build(full()).replace(b'"shrink"', b'"up"')))


def test_a_template_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "offer.xml"
    path.write_bytes(build(full()))
    code, output, _ = invoke("check", path)
    assert code == 0
    assert output.splitlines() == [
        "NT_NEGOTIATION in negotiation a:7-x._ of APPLICATION, node7 with fe80::1",
        "  3 GPU.x: NT_OPTIONAL, NT_NEGOTIABLE, NT_NEGOTIATION, on beta, for solver_1",
        "  2147483647 CPU: NT_REQUIRED, NT_FIXED, NT_NEGOTIATION",
    ]
    code, output, _ = invoke("check", "--json", "-", given=PUBLISHED)
    assert json.loads(output)["resources"][0]["quantity"] == 4


def test_json_is_as_its_schema_says() -> None:
    """What is printed of any template, with all members or the fewest; and the schema knows every member."""
    schema: Any = shape_schema("negotiation-template")

    @given(templates)
    def holds(template: Template) -> None:
        assert deviations(to_object(template), schema) == []

    holds()
    code, output, _ = invoke("check", "--json", "-", given=PUBLISHED)
    assert code == 0
    least = json.loads(output)
    assert deviations(least, schema) == []
    assert set(least) == set(schema["required"])
    assert deviations({**least, "status": "NT_MAYBE"}, schema) != []
    assert set(schema["properties"]) == set(Template._fields)
    assert set(schema["$defs"]["TemplateResource"]["properties"]) == set(Resource._fields)


@pytest.mark.parametrize(
    ("given", "named"),
    [(b"<NT/>", "NT_AgreementID"), (b"x" * 100_000, "too large"), (b"<!DOCTYPE NT><NT/>", "no document type")],
)
def test_what_is_no_template_is_refused(given: bytes, named: str) -> None:
    code, output, error = invoke("check", "-", given=given)
    assert (code, output) == (1, "")
    assert named in error


# -- The units for systemd: it takes them as they are, and they run what there is.


ROOT = Path(__file__).parents[3]
UNITS = sorted((ROOT / "conf").glob("*.service"))
GUIDE = (ROOT / "docs" / "admin-guide.md").read_text(encoding="utf-8")
PROGRAM = "/opt/koala/bin/koala"
SERVERS = [path for path in UNITS if "give-back" not in path.name]
AGAIN = 15
"""Seconds within which a scheduler that hangs schedules again; a second of them for its start."""


def read(path: Path) -> RawConfigParser:
    parser = RawConfigParser(strict=False, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign] # the names are told apart by case
    parser.read_string(path.read_text(encoding="utf-8"))
    return parser


def test_there_are_units_for_all_that_serves() -> None:
    """And one that gives the queue back."""
    names = ["koala-give-back@.service", "koala-schedule@.service", "koala-wiki@.service", "koala.service"]
    assert [path.name for path in UNITS] == [*names, "koala@.service"]


@pytest.mark.parametrize("give_back", [False, True], ids=["as-it-comes", "gives-back"])
def test_systemd_takes_them(tmp_path: Path, *, give_back: bool) -> None:
    """Without a word, also with the line by which the queue is given back. The program is put where this one is."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not here")
    here = tmp_path / "koala"
    here.write_text(f"#!{sys.executable}\n")
    here.chmod(0o755)
    for path in UNITS:
        text = path.read_text(encoding="utf-8").replace("%h/.local/bin/koala", PROGRAM).replace(PROGRAM, str(here))
        (tmp_path / path.name).write_text(text.replace("#OnFailure=", "OnFailure=") if give_back else text)
    instances = [path.name.replace("@.", "@root.") for path in UNITS]
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(str(tmp_path / name) for name in instances)],
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_UNIT_PATH": f"{tmp_path}:", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    ours = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "koala" in line]
    assert ours == []
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_they_run_commands_that_there_are(path: Path) -> None:
    program, *arguments = shlex.split(read(path)["Service"]["ExecStart"])
    assert program in {PROGRAM, "%h/.local/bin/koala"}
    done = CliRunner().invoke(koala, [*(one.replace("%i", "a") for one in arguments), "--help"])
    assert (done.exit_code, done.output[:6]) == (0, "Usage:")
    named = [one for one in (program, *arguments) if one.startswith("/")]
    assert [one for one in named if one not in GUIDE and str(Path(one).parent.parent) not in GUIDE] == []


@pytest.mark.parametrize("path", SERVERS, ids=lambda path: path.name)
def test_what_is_killed_or_hangs_comes_back(path: Path) -> None:
    """Soon, but not where trying again does not help."""
    service = read(path)["Service"]
    assert (service["Type"], service["Restart"]) == ("notify", "on-failure")
    assert service["RestartPreventExitStatus"] == "245 246"
    if "@" in path.name and "koala@" not in path.name:
        assert int(service["WatchdogSec"]) + int(service["RestartSec"]) < AGAIN - 1
        assert service["StateDirectoryMode"] == "0700"


def test_the_queue_is_given_back_until_a_scheduler_is_there_again() -> None:
    """Also when the batch system does not answer at first; never beside a scheduler."""
    unit = read(ROOT / "conf" / "koala-give-back@.service")
    assert (unit["Service"]["Restart"], unit["Unit"]["StartLimitIntervalSec"]) == ("always", "0")
    assert unit["Unit"]["Conflicts"] == unit["Unit"]["After"] == "koala-schedule@%i.service koala-wiki@%i.service"
    # Or a scheduler that is started beside the other would fail, and its failure give back the queue of both.
    assert read(ROOT / "conf" / "koala-schedule@.service")["Unit"]["Conflicts"] == "koala-wiki@%i.service"
    assert read(ROOT / "conf" / "koala-wiki@.service")["Unit"]["Conflicts"] == "koala-schedule@%i.service"
    for path in UNITS:
        if "schedule" in path.name or "wiki" in path.name:
            assert "#OnFailure=koala-give-back@%i.service" in path.read_text(encoding="utf-8")
