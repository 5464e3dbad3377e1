# SPDX-License-Identifier: Apache-2.0
"""What ``koala schedule`` takes and says: weights, refusals with a way out, and lines that people understand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import pytest
from click.testing import CliRunner

from koala_adapter.cli import schedule as ordertext
from koala_adapter.cli.koala import koala
from koala_adapter.cli.schedule import parse_weights
from koala_adapter.errors import ConfigurationError
from koala_adapter.model import LrmJobId
from koala_adapter.ordering.asking import Explanation, Overview
from koala_adapter.ordering.jobs import JobEvent, JobEventKind
from koala_adapter.ordering.shadow import Difference, ShadowReport
from koala_adapter.queueing.queue import PriorityWeights

if TYPE_CHECKING:
    from pathlib import Path


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
    """With what is allowed."""
    with pytest.raises(ConfigurationError, match=said):
        parse_weights(text)


SITE = """
[[clusters]]
name = "a"
plugin = "local"
[clusters.settings]
"""


def run(directory: Path, *arguments: str) -> tuple[int, str]:
    """Run a command against a site of one cluster; return its exit code and what it said."""
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
        (("explain", "b:1"), 245, "no cluster 'b'; there are: a"),
        (("explain", "a:1"), 246, "koala schedule --cluster a"),
        (("explain", "1", "--cluster", "a"), 246, "koala schedule --cluster a"),
    ],
)
def test_refusals(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    """Each with its exit code and the way out."""
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
    """Job, user, processors, and what is to be known besides."""
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
    ],
)
def test_explanations_in_words(phase: str, values: dict[str, object], said: str) -> None:
    """For each phase of a job."""
    given = {"job_id": "7", "user": "kim", "name": "cfd", "processors": 4, "reason": "", "estimate": 60, **values}
    found = Explanation(phase=phase, **given)  # type: ignore[arg-type]
    lines = list(ordertext.explanation(found, "a"))
    assert lines[0] == "job 7 (cfd) of kim on a: 4 processors for at most 60 s"
    assert any(line.startswith(said) for line in lines[1:])


def test_an_assumed_run_time_in_words() -> None:
    """A job without a limit is not said to have one."""
    found = Explanation(
        job_id="7",
        user="kim",
        name="",
        processors=4,
        phase="left out",
        reason="",
        estimate=86400,
        estimate_assumed=True,
    )
    (first, *_) = ordertext.explanation(found, "a")
    assert first.endswith("for at most 24:00:00 (assumed: no limit of its run time is known)")


def test_the_status_in_one_line() -> None:
    """With what is unusual only when it is so."""
    found = Overview(read_at=0.0, processors=32, free=8, waiting=3, running=2, starting=1, left_out=4)
    assert ordertext.status("a", found, None) == (
        "a: 24 of 32 processors used, 2 running, 1 starting, 3 waiting, 4 left out"
    )
    assert "does not answer: gone" in ordertext.status("a", found, "gone")


def test_the_report_of_a_shadow_in_words() -> None:
    """How many start when, the mean waits, and the largest differences."""
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


def test_a_queue_that_is_given_back_is_named_once(tmp_path: Path) -> None:
    """Another cluster beside it is not ignored."""
    done = CliRunner().invoke(koala, ["--state", str(tmp_path), "schedule", "--give-back", "a", "--cluster", "b"])
    assert done.exit_code == 2
    assert "give it or --cluster" in done.stderr
