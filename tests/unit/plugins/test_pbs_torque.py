# SPDX-License-Identifier: Apache-2.0
"""The plugin ``pbs`` with Torque's commands: scripts that note how they are called and print the samples."""

from __future__ import annotations

import resource
import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
from pydantic import ValidationError

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError, LrmUnsupportedError
from koala_adapter.lrm import Lrm, Submission
from koala_adapter.model import BatchKey, LrmJobId, LrmJobState
from koala_adapter.testing import new_context
from koala_adapter.testing.trial import begin_start
from koala_pbs import PLUGIN, PbsSettings
from koala_pbs.torque import LARGEST_SCRIPT, packed

SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "torque"
SCRIPT = "#!/bin/sh\nexit 0\n"
PRINTING = {
    "qstat": f"""\
case "$*" in
*-F*) echo "qstat: invalid option -- 'F'" >&2; echo "usage: qstat [-f] ..." >&2; exit 2;;
--version) echo "Version: 6.1.3" >&2;;
"-B -f") cat {SAMPLES}/qstat-Bf.txt;;
"-Q -f") cat {SAMPLES}/qstat-Qf.txt;;
*) cat {SAMPLES}/qstat-tx.xml;;
esac""",
    "pbsnodes": f"cat {SAMPLES}/pbsnodes-x.xml",
    "qsub": "cat >/dev/null; number=$(grep -c ^qsub $log); echo $((200 + number)).head.site",
    **dict.fromkeys(("qdel", "qhold", "qrls", "qalter", "qsig", "qrun", "qrerun", "qmsg"), ":"),
}


class Commands:
    """A directory of Torque's commands, and what they were called with."""

    def __init__(self, directory: Path) -> None:
        """Write them."""
        directory.mkdir()
        self.directory = directory
        self._log = directory / "log"
        for name, body in PRINTING.items():
            file = directory / name
            line = f'echo "{name} $*" >>$log; [ -z "$PBS_DEFAULT" ] || echo "at $PBS_DEFAULT" >>$log'
            file.write_text(f"#!/bin/sh\nlog={self._log}\n{line}\n{body}\n")
            file.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """Return the arguments of each call of a command, or the servers that were asked (``at``)."""
        lines = self._log.read_text().splitlines()
        return [line.removeprefix(f"{name} ") for line in lines if line.startswith(f"{name} ")]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    """Give the commands."""
    return Commands(tmp_path / "bin")


async def started(commands: Commands, tmp_path: Path, **settings: object) -> Lrm:
    """Return the started plugin."""
    model = PbsSettings.model_validate({"dialect": "torque", "bin_directory": commands.directory, **settings})
    lrm = PLUGIN.factory(new_context(tmp_path / "context"), model)
    await lrm.start()
    return lrm


async def test_it_lists(commands: Commands, tmp_path: Path) -> None:
    """Jobs, nodes, queues and version, of the server that PBS_DEFAULT names."""
    lrm = await started(commands, tmp_path, server="head.site")
    jobs = {job.id: job for job in await lrm.jobs()}
    assert jobs[LrmJobId("109[1].head.site")].state is LrmJobState.RUNNING
    assert sum(node.processors for node in await lrm.nodes()) == 45
    assert [(queue.name, queue.up) for queue in await lrm.queues()] == [
        ("batch", True),
        ("closed", False),
        ("route", True),
    ]
    assert await lrm.version() == "torque 6.1.3"
    assert set(commands.calls("at")) == {"head.site"}
    assert not lrm.capabilities.accounting


async def test_placeholders_are_single_jobs(commands: Commands, tmp_path: Path) -> None:
    lrm = await started(commands, tmp_path)
    submission = Submission(
        key=BatchKey("koala-a"), count=2, script=SCRIPT, walltime=600, memory_mib=100, queue="batch"
    )
    assert await lrm.submit(submission) == ("201.head.site", "202.head.site")
    options = "-S /bin/sh -j oe -o /dev/null -m n -q batch"
    assert commands.calls("qsub") == [
        f"-C  -N koala-a -v PBS_ARRAY_INDEX={index} -l nodes=1:ppn=1 -l mem=100mb -l walltime=600 -r n {options}"
        for index in (1, 2)
    ]
    await lrm.cancel([LrmJobId("201.head.site"), LrmJobId("109[1].head.site"), LrmJobId("109[2].head.site")])
    assert commands.calls("qdel") == ["201.head.site", "109[1].head.site", "109[2].head.site"]


async def test_elements_are_held_singly(commands: Commands, tmp_path: Path) -> None:
    lrm = await started(commands, tmp_path)
    await lrm.hold([LrmJobId("109[1].head.site")])
    await lrm.release([LrmJobId("109[1].head.site")])
    assert (commands.calls("qhold"), commands.calls("qrls")) == (["-h u 109[1].head.site"], ["-h u 109[1].head.site"])


async def test_operators_start_jobs_on_nodes(commands: Commands, tmp_path: Path) -> None:
    """By qrun, in Torque's words for nodes; nobody else can."""
    lrm = await started(commands, tmp_path)
    assert not lrm.capabilities.pin
    with pytest.raises(LrmUnsupportedError, match="operator = true"):
        await begin_start(lrm, LrmJobId("104.head.site"), ["n1"])
    operator = await started(commands, tmp_path, operator=True)
    await begin_start(operator, LrmJobId("105.head.site"), ["n1"])
    assert commands.calls("qrun") == ["-H n1:ppn=1 105.head.site"]
    with pytest.raises(LrmRejectedError, match="where 0 are idle"):
        await begin_start(operator, LrmJobId("104.head.site"), ["n5"])


async def test_check_says_what_it_is(commands: Commands, tmp_path: Path) -> None:
    lrm = await started(commands, tmp_path)
    found = {result.subject: result for result in await lrm.check()}
    assert all(result.ok for result in found.values())
    assert found["version"].found == "Torque 6.1.3"
    assert "keep_completed" in found["history"].found
    taken_for_openpbs = PLUGIN.factory(new_context(tmp_path / "other"), PbsSettings(bin_directory=commands.directory))
    with pytest.raises(LrmRejectedError) as error:
        await taken_for_openpbs.start()
    assert 'dialect = "torque"' in error.value.hint
    remedies = [result.remedy for result in await taken_for_openpbs.check() if not result.ok]
    assert any('dialect = "torque"' in remedy for remedy in remedies)


async def test_openpbs_is_not_taken_for_torque(commands: Commands, tmp_path: Path) -> None:
    """It tells its release, and is refused."""
    text = (commands.directory / "qstat").read_text()
    server = tmp_path / "server.txt"
    server.write_text((SAMPLES / "qstat-Bf.txt").read_text().replace("6.1.3", "23.06.06"))
    (commands.directory / "qstat").write_text(text.replace(f"{SAMPLES}/qstat-Bf.txt", str(server)))
    with pytest.raises(LrmRejectedError, match=r"this is OpenPBS or PBS Professional 23\.06\.06"):
        await started(commands, tmp_path)


@pytest.mark.parametrize("setting", [{"conf": "/etc/pbs.conf"}, {"project": "p"}])
def test_settings_that_torque_has_not(setting: dict[str, str]) -> None:
    with pytest.raises(ValidationError, match=f"Torque has no {next(iter(setting))}"):
        PbsSettings.model_validate({"dialect": "torque", **setting})


async def test_a_server_that_does_not_answer_is_asked_once(commands: Commands, tmp_path: Path) -> None:
    (commands.directory / "qstat").write_text(
        f'#!/bin/sh\necho "qstat $*" >>{commands.directory}/log\n'
        "echo 'qstat: cannot connect to server head.site (errno=111)' >&2; exit 111\n"
    )
    settings = PbsSettings.model_validate({"dialect": "torque", "bin_directory": commands.directory})
    lrm = PLUGIN.factory(new_context(tmp_path / "context"), settings)
    with pytest.raises(LrmUnavailableError) as caught:
        await lrm.start()
    found = {result.subject: (result.ok, result.found) for result in await lrm.check()}
    assert commands.calls("qstat") == ["-B -f"]
    assert found["commands"][0]
    assert found["version"] == found["server"] == (False, caught.value.message)
    assert list(found) == ["commands", "version", "server"]


SHELLS = [path for name in ("dash", "bash") if (path := shutil.which(name))]


def no_files() -> None:
    """Let the process write no regular file, as where all file systems are full; pipes are left."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


@pytest.mark.parametrize("way", ["name", "pipe", "standard input"])
@pytest.mark.parametrize("shell", SHELLS, ids=lambda path: Path(path).name)
def test_a_packed_script_needs_no_file(shell: str, way: str, tmp_path: Path) -> None:
    long = f"#!/bin/sh\n# {'x' * LARGEST_SCRIPT}\necho $((6 * 7))\nexit 7\n"
    file = tmp_path / "script"
    file.write_text(packed(long).replace("/bin/sh\n}", f"{shell}\n}}"))
    assert file.stat().st_size < LARGEST_SCRIPT
    with ExitStack() as stack:
        if way == "pipe":
            source = stack.enter_context(subprocess.Popen(["cat", file], stdout=subprocess.PIPE)).stdout
            assert source is not None
        else:
            source = stack.enter_context(file.open("rb"))
        done = subprocess.run(
            [shell, file] if way == "name" else [shell], stdin=source, env={"PATH": "/usr/bin:/bin"}, text=True,
            capture_output=True, check=False, timeout=90, preexec_fn=no_files,
        )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (7, "42\n", "")
    assert packed(SCRIPT) == SCRIPT, "a short one stays as it is"
