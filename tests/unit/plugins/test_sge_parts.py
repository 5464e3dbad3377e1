# SPDX-License-Identifier: Apache-2.0
"""What is asked of Grid Engine, and the settings that choose the cell."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pydantic import ValidationError

from koala_adapter.errors import LrmNotFoundError, LrmRejectedError, LrmUnavailableError
from koala_adapter.lrm import ClusterContext, Submission
from koala_adapter.lrm.commands import CommandResult, CommandRunner
from koala_adapter.lrm.contract import Directives
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery
from koala_adapter.model import BatchKey, ClusterName, LrmJobId
from koala_adapter.testing.trial import begin_start
from koala_sge import SgeLrm, SgeSettings
from koala_sge import heldjobs as sge_requests

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

QHOST_DOWN = 'error: unable to send message to qmaster using port 1 on host "localhost": got send error\n'
HELD = (
    "<job_info><job_list><JB_job_number>{number}</JB_job_number><JB_name>k</JB_name><JB_owner>me</JB_owner>"
    "<state>{letters}</state><slots>1</slots><tasks>{tasks}</tasks></job_list>{more}</job_info>"
)

QUEUES = {"qconf": (0, "qname all.q\nh_rt INFINITY\n", ""), "qselect": (0, "all.q@n1\nall.q@n2\n", "")}


class ScriptedRunner(CommandRunner):
    """Answers each command with what a test has laid out for it, and remembers what was asked."""

    def __init__(self, answers: Mapping[str, tuple[int, str, str]]) -> None:
        """``answers``: exit code, stdout and stderr by the command's last path component."""
        super().__init__(per_minute=60_000)
        self.answers = dict(answers)
        self.asked: list[tuple[str, ...]] = []

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",  # noqa: ARG002 - the signature is the parent's
        environment: Mapping[str, str] | None = None,  # noqa: ARG002
        timeout: float = 30.0,  # noqa: ARG002
        urgent: bool = False,  # noqa: ARG002
    ) -> CommandResult:
        """Answer from the table."""
        self.asked.append(tuple(argv))
        code, stdout, stderr = self.answers[argv[0]]
        return CommandResult(argv=tuple(argv), returncode=code, stdout=stdout.encode(), stderr=stderr.encode())


def lrm_of(tmp_path: Path, *, answers: Mapping[str, tuple[int, str, str]] | None = None, **settings: object) -> SgeLrm:
    """Return a plugin object that has not been started."""
    context = ClusterContext(
        cluster=ClusterName("c"),
        commands=ScriptedRunner(answers or {}),
        state_directory=tmp_path,
        directives=Directives(drop=("-r",), add=("-P physics",)),
        user="me",
    )
    return SgeLrm(context, SgeSettings.model_validate({"root": "/sge", **settings}))


def submission(*, held: bool = False, queue: str | None = None) -> Submission:
    """Return a submission of three placeholders."""
    return Submission(
        key=BatchKey("k1"), count=3, script="#!/bin/sh\n", walltime=90, memory_mib=512, held=held, queue=queue
    )


class TestSettings:
    """The settings of a cell."""

    def test_variables(self) -> None:
        """Root, cell and ports choose the cell; times are printed in UTC; nothing else is set."""
        settings = SgeSettings(root=Path("/sge"), cell="c", qmaster_port=1, execd_port=2, environment={"X": "y"})
        assert settings.variables() == {
            "SGE_ROOT": "/sge",
            "SGE_CELL": "c",
            "SGE_QMASTER_PORT": "1",
            "SGE_EXECD_PORT": "2",
            "SGE_SINGLE_LINE": "1",
            "TZ": "UTC",
            "X": "y",
        }

    def test_commands(self, tmp_path: Path) -> None:
        """Commands are taken from the given directory, else from PATH."""
        assert lrm_of(tmp_path).render(submission()).command[0] == "qsub"
        assert lrm_of(tmp_path, bin_directory="/b").render(submission()).command[0] == "/b/qsub"

    @pytest.mark.parametrize("wrong", [{"cell": ""}, {"qmaster_port": 0}, {"qmaster_port": 70_000}, {"ports": 1}])
    def test_wrong_values(self, wrong: dict[str, object]) -> None:
        """Impossible values and unknown keys are refused."""
        with pytest.raises(ValidationError):
            SgeSettings.model_validate({"root": "/sge", **wrong})


class TestRender:
    """The exact submission."""

    def test_equivalent_command(self, tmp_path: Path) -> None:
        """It is the qsub that does the same, with the site's changes, and names the script by its private file."""
        rendered = lrm_of(tmp_path, queue="all.q").render(submission(held=True))
        assert " ".join(rendered.command) == (
            "qsub -terse -N k1 -t 1-3 -wd /tmp -o /dev/null -j y -h -b y -shell n -l h_rt=90 -l h_vmem=512M "
            f"-q all.q -P physics /bin/sh {tmp_path}/scripts/k1.sh"
        )

    def test_copied_script(self, tmp_path: Path) -> None:
        """Where Grid Engine copies the script, it is told the shell; the submission's queue goes before the site's."""
        lrm = lrm_of(tmp_path, queue="all.q", script_delivery=ScriptDelivery.COPIED)
        words = " ".join(lrm.render(submission(queue="fast.q")).command)
        assert "-b n -S /bin/sh" in words
        assert "-q fast.q" in words
        assert words.endswith(f" {tmp_path}/scripts/k1.sh")

    def test_key_that_is_no_name(self, tmp_path: Path) -> None:
        """A key that Grid Engine takes for no name is refused before anything is sent."""
        wrong = Submission(key=BatchKey("1/2"), count=1, script="", walltime=1)
        with pytest.raises(LrmRejectedError):
            lrm_of(tmp_path).render(wrong)


@pytest.mark.anyio
class TestAnswers:
    """What is made of what commands print."""

    async def test_empty_output_is_no_empty_cell(self, tmp_path: Path) -> None:
        """A command that prints nothing but a complaint makes the cell unavailable, whatever its exit code."""
        lrm = lrm_of(tmp_path, answers={"qhost": (0, "", QHOST_DOWN), "qstat": (1, "", "")})
        with pytest.raises(LrmUnavailableError, match="got send error"):
            await lrm.nodes()
        with pytest.raises(LrmUnavailableError, match="exit code 1"):
            await lrm.jobs()

    async def test_history_of_the_unknown_is_empty(self, tmp_path: Path) -> None:
        """A job that accounting does not know (yet) is left out; asked once per array, not once per task."""
        lrm = lrm_of(tmp_path, answers={"qacct": (1, "", "error: job id 7 not found\n")})
        assert await lrm.history([LrmJobId("7.1"), LrmJobId("7.2")]) == ()
        runner = lrm._context.commands
        assert isinstance(runner, ScriptedRunner)
        assert runner.asked == [("qacct", "-j", "7")]

    async def test_unreadable_accounting_is_unavailable(self, tmp_path: Path) -> None:
        """Accounting that cannot be read is not taken for a job that never was."""
        lrm = lrm_of(tmp_path, answers={"qacct": (1, "", "can't open accounting file: Permission denied\n")})
        with pytest.raises(LrmUnavailableError, match="Permission denied"):
            await lrm.history([LrmJobId("7.1")])

    async def test_start_on_refuses_to_move_siblings(self, tmp_path: Path) -> None:
        """While a task of the same array is released and has not started, pinning would move that one too."""
        more = (
            "<job_list><JB_job_number>7</JB_job_number><JB_name>k</JB_name><JB_owner>me</JB_owner>"
            "<state>qw</state><slots>1</slots><tasks>2</tasks></job_list>"
        )
        listing = HELD.format(number=7, letters="hqw", tasks="1", more=more)
        lrm = lrm_of(tmp_path, answers={"qstat": (0, listing, ""), **QUEUES})
        with pytest.raises(LrmRejectedError, match=r"7\.2 of the same array"):
            await begin_start(lrm, LrmJobId("7.1"), ["n1"])

    @pytest.mark.parametrize(
        ("nodes", "letters", "words"), [(["a", "b"], "hqw", "one node"), (["a"], "r", "running, not held")]
    )
    async def test_start_on_refusals(self, tmp_path: Path, nodes: list[str], letters: str, words: str) -> None:
        """A placeholder starts on one node, and only when it is held."""
        listing = HELD.format(number=7, letters=letters, tasks="1", more="")
        lrm = lrm_of(tmp_path, answers={"qstat": (0, listing, ""), **QUEUES})
        with pytest.raises(LrmRejectedError, match=words):
            await begin_start(lrm, LrmJobId("7.1"), nodes)

    async def test_start_on_refused_by_grid_engine(self, tmp_path: Path) -> None:
        """A refusal of qalter is raised as one."""
        listing = HELD.format(number=7, letters="hqw", tasks="1", more="")
        denied = 'denied: "me" must be at least owner of job 7 to change job attributes\n'
        lrm = lrm_of(tmp_path, answers={"qstat": (0, listing, ""), "qalter": (1, "", denied), **QUEUES})
        with pytest.raises(LrmRejectedError, match="at least owner"):
            await begin_start(lrm, LrmJobId("7.1"), ["n1"])


@pytest.mark.parametrize(("id_", "number"), [("123.4", "123"), ("123", "123")])
def test_job_numbers(id_: str, number: str) -> None:
    """The job of a task, and of a job that is no array."""
    assert sge_requests.job_number(LrmJobId(id_)) == number


@pytest.mark.parametrize("id_", ["", "x.1", "-u", "*"])
def test_what_is_no_job_number(id_: str) -> None:
    """Nothing that is no number ever reaches a command line as a job id."""
    with pytest.raises(LrmNotFoundError):
        sge_requests.job_number(LrmJobId(id_))


NEVER = "verification: no suitable queues\n"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("verification: found suitable queue(s)\n", ""),
        ('denied: job "999" does not exist\n', ""),
        ("", ""),
        (NEVER, "no suitable queues"),
        (
            f'Job 2 (-l h_rt=7200) cannot run in queue "all.q" because of cluster queue\n{NEVER}',
            'cannot run in queue "all.q" because of cluster queue',
        ),
        (
            f'Job 3 (-l arch=no,h_rt=600) cannot run at host "h" because it offers only hl:arch=lx-amd64\n{NEVER}',
            'cannot run at host "h" because it offers only hl:arch=lx-amd64',
        ),
    ],
)
def test_why_a_job_never_runs(said: str, why: str) -> None:
    """As qalter -w v of 8.1.9 says it."""
    assert sge_requests.why_never(said) == why
