# SPDX-License-Identifier: Apache-2.0
"""Clusters are found, tried and written down as a site file, and ``koala check`` tells what does not answer."""

from __future__ import annotations

import os
import threading
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path

import anyio
import pytest
from pydantic import BaseModel

import koala_local
from koala_adapter.config.sitefile import NoSettings, SiteConfig, load_site_text
from koala_adapter.errors import LrmUnavailableError, PluginError
from koala_adapter.lrm import (
    Capabilities,
    CheckResult,
    ClusterContext,
    Discovery,
    FoundCluster,
    LeftOut,
    Lrm,
    PluginDefinition,
    Surroundings,
    load_plugins,
)
from koala_adapter.lrm.commands import CommandRunner
from koala_adapter.model import EndReason, MpiResize, Node, Queue, TaskEnd
from koala_adapter.outcome import JobState
from koala_adapter.report.values import JobReport
from koala_adapter.sitesetup import checks as clustercheck
from koala_adapter.sitesetup import checks as progress
from koala_adapter.sitesetup.checks import AskedTime, ClusterCheck, asked_times
from koala_adapter.sitesetup.find import (
    Address,
    Candidate,
    UsableCluster,
    find_candidates,
    site_text,
    unique_name,
)
from koala_adapter.sitesetup.search import no_site_file_here, search
from koala_adapter.sitesetup.trial import TrialCenter, judged
from koala_pbs.settings import discover as discover_pbs
from koala_sge.settings import discover as discover_sge
from koala_sge.settings import smallest_user
from koala_slurm.settings import discover as discover_slurm
from koala_slurm.settings import parse_clusters
from tests.local_koala import end_daemon
from tests.unit.api.jobreports import job_report
from tests.unit.service.scripted_lrm import ScriptedLrm, config, node

NOWHERE = Surroundings(environment={})
FOUND = FoundCluster(name="here", described="this host, by a test", settings={"processors": 3})


@pytest.fixture(autouse=True)
def no_daemon_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    for cluster in tmp_path.rglob("clusters/*"):
        anyio.run(end_daemon, cluster)


def plugin(*clusters: FoundCluster, left_out: tuple[LeftOut, ...] = ()) -> PluginDefinition:
    return replace(koala_local.PLUGIN, discover=lambda _: Discovery(clusters=clusters, left_out=left_out))


def broken(_: Surroundings) -> Discovery:
    raise RuntimeError("oops")


@pytest.mark.parametrize(
    ("wanted", "name"),
    [
        ("alpha", "alpha"),
        ("head.example.org", "head-example-org"),
        ("1st", "cluster-1st"),
        ("***", "cluster"),
        ("taken", "taken-3"),
        ("x" * 80, "x" * 63),
    ],
)
def test_names_that_a_site_file_allows(wanted: str, name: str) -> None:
    """And that no other cluster has."""
    assert unique_name(wanted, {"taken", "taken-2"}) == name


def test_a_plugin_that_fails_or_finds_nothing_leaves_the_others_alone() -> None:
    failing = replace(koala_local.PLUGIN, discover=broken)
    silent = replace(koala_local.PLUGIN, discover=None)
    candidates, left_out = find_candidates({"b": failing, "c": plugin(FOUND, FOUND), "d": silent}, NOWHERE)
    assert [(one.name, one.plugin) for one in candidates] == [("here", "c"), ("here-2", "c")]
    assert [one.what for one in left_out] == ["plugin b"]
    assert "RuntimeError: oops" in left_out[0].why


def test_a_plugin_that_hangs_leaves_the_others_alone() -> None:
    """It is not waited for beyond the limit, and that is told."""
    answered = threading.Event()

    def hanging(_: Surroundings) -> Discovery:
        answered.wait(60)
        return Discovery()

    hangs = replace(koala_local.PLUGIN, discover=hanging)
    try:
        candidates, left_out = find_candidates({"a": hangs, "c": plugin(FOUND)}, NOWHERE, limit=2)
    finally:
        answered.set()
    assert [one.name for one in candidates] == ["here"]
    assert [(one.what, one.why) for one in left_out] == [("plugin a", "its search has not ended within 2 s")]


def usable(**more: object) -> UsableCluster:
    values: dict[str, object] = {
        "candidate": Candidate(name="here", plugin="local", found=FOUND),
        "version": "local 1\n[evil]",
        "nodes": 1,
        "processors": 3,
        "queues": (
            Queue(name='q"1', up=True, processors=3, walltime_limit=90061),
            Queue(name="r", up=False, processors=0),
        ),
        "queue": 'q"1',
        "walltime_limit": 90061,
        "poll_interval": None,
    }
    return UsableCluster(**{**values, **more})  # type: ignore[arg-type]


def test_the_text_is_a_site_file_that_says_what_was_found() -> None:
    """Whatever a batch system calls its things, it stays in its place."""
    left = LeftOut(what="x", why="broken\n[[clusters]]", remedy="mend it")
    text = site_text([usable()], [left], Address(listen="0.0.0.0", address="10.0.0.1"), made="by a test")
    assert tomllib.loads(text) == {
        "control_center": {"listen": "0.0.0.0", "address": "10.0.0.1"},
        "clusters": [
            {
                "name": "here",
                "plugin": "local",
                "queue": 'q"1',
                "walltime_limit": "25:01:01",
                "threshold": 0,
                "settings": {"processors": 3},
            }
        ],
    }
    assert "broken\\n[[clusters]]; mend it" in text
    assert all(line.startswith(("#", "[")) or "=" in line or not line for line in text.splitlines())


def test_what_has_a_default_queue_names_none() -> None:
    """The line is there, for who wants another."""
    queues = (Queue(name="main", up=True, processors=3, default=True),)
    text = site_text(
        [usable(queues=queues, queue=None, walltime_limit=None)], [], Address(listen="127.0.0.1"), made="x"
    )
    (cluster,) = tomllib.loads(text)["clusters"]
    assert "queue" not in cluster
    assert "walltime_limit" not in cluster
    assert '#queue = "main"' in text


def test_a_search_tries_what_it_finds(tmp_path: Path) -> None:
    wrong = FoundCluster(name="wrong", described="nonsense", settings={"processors": -1})
    plugins = {"local": plugin(FOUND, wrong)}
    found = search(plugins, tmp_path, around=NOWHERE)
    assert [one.candidate.name for one in found.clusters] == ["here"]
    assert [one.what for one in found.left_out] == ["nonsense"]
    site = load_site_text(found.text(made="by a test"), plugins)
    assert site.cluster("here").settings.model_dump()["processors"] == 3


def test_a_missing_site_file_is_refused_with_what_is_here() -> None:
    """And with the command that writes one; where nothing is here, with the reasons and what could be set."""
    refusal = no_site_file_here({"local": plugin(FOUND)}, around=NOWHERE)
    assert "no site file found; looked for: $KOALA_SITE" in refusal.message
    assert refusal.message.endswith("batch systems of this host: here (this host, by a test)")
    assert "`koala init`" in refusal.hint
    seen = LeftOut(what="Slurm", why="no answer", remedy="wait")
    refusal = no_site_file_here({"local": plugin(left_out=(seen,))}, around=NOWHERE)
    assert "no batch system can be used from here:\n  Slurm: no answer; wait" in refusal.message
    assert "SLURM_CONF" in refusal.hint
    assert "koala demo" in refusal.hint


def test_a_definition_with_a_wrong_discover_is_refused() -> None:
    """It is a part of the contract."""
    entry = EntryPoint(name="local", value=f"{__name__}:WRONG", group="koala_adapter.plugins")
    with pytest.raises(PluginError, match="discover"):
        load_plugins([entry])["local"]


WRONG = replace(koala_local.PLUGIN, discover="everything")  # type: ignore[arg-type]


# What the plugins find by variables and files; the commands that they ask are small scripts.


def written(path: Path, text: str, *, mode: int = 0o644) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path


def around(root: Path, **environment: str) -> Surroundings:
    """Return surroundings without any program but those in ``root/bin``."""
    return Surroundings(environment={"PATH": str(root / "bin"), **environment}, root=str(root))


def program(root: Path, name: str, output: str) -> None:
    written(root / "bin" / name, f"#!/bin/sh\n/bin/cat <<'END'\n{output}\nEND\n", mode=0o755)


# -- Slurm -----------------------------------------------------------------------------------------------------------


def test_slurm_by_its_variable_and_below_etc(tmp_path: Path) -> None:
    """The named one first, each once, with the name that its file says."""
    first = written(tmp_path / "mine" / "slurm.conf", "# x\nclustername = physics\nSlurmctldHost=a\n")
    second = written(tmp_path / "etc" / "slurm-old" / "slurm.conf", "ClusterName=old\n")
    (tmp_path / "etc" / "slurm").symlink_to(tmp_path / "mine")
    found = discover_slurm(around(tmp_path, SLURM_CONF="/mine/slurm.conf"))
    assert [(one.name, one.settings) for one in found.clusters] == [
        ("physics", {"conf": str(first)}),
        ("old", {"conf": str(second)}),
    ]
    assert found.left_out == ()


def test_a_slurm_conf_that_is_not_there_is_told(tmp_path: Path) -> None:
    written(tmp_path / "etc" / "slurm" / "slurm.conf", "ClusterName=main\n")
    found = discover_slurm(around(tmp_path, SLURM_CONF="/nowhere/slurm.conf"))
    assert [one.name for one in found.clusters] == ["main"]
    assert "/nowhere/slurm.conf" in found.left_out[0].why
    assert "SLURM_CONF" in found.left_out[0].remedy


def test_a_slurm_without_files_is_asked_for_its_name(tmp_path: Path) -> None:
    """The commands get their configuration from the controller."""
    program(tmp_path, "scontrol", "Configuration data\nClusterName             = remote\n")
    (found,) = discover_slurm(around(tmp_path)).clusters
    assert (found.name, found.settings) == ("remote", {})
    assert "scontrol" in found.described


def test_clusters_that_only_slurmdbd_knows_are_left_out(tmp_path: Path) -> None:
    """Each with its host, and what would be needed to use it."""
    accounting = "AccountingStorageType=accounting_storage/slurmdbd\n"
    written(tmp_path / "etc" / "slurm" / "slurm.conf", f"ClusterName=main\n{accounting}")
    program(tmp_path, "sacctmgr", "main|ctl1\nother|ctl2\nasleep|\n")
    left = discover_slurm(around(tmp_path)).left_out
    assert [one.what for one in left] == ["Slurm cluster other", "Slurm cluster asleep"]
    assert "ctl2" in left[0].why
    assert "conf" in left[0].remedy


def test_what_slurmdbd_says_is_read_strictly() -> None:
    """Banners and empty lines are no clusters."""
    assert parse_clusters("welcome\n\na|h\n|x\nb|h|more\n") == {"a": "h"}


# -- Grid Engine -----------------------------------------------------------------------------------------------------


def cell(root: Path, name: str, *, settings: str = "") -> None:
    written(root / name / "common" / "act_qmaster", "host\n")
    if settings:
        written(root / name / "common" / "settings.sh", settings)


def test_all_cells_of_grid_engine(tmp_path: Path) -> None:
    """The one of the variables first, with their ports; the ports of others by their settings.sh."""
    program(tmp_path, "qconf", "min_uid 0")
    sge = tmp_path / "sge"
    cell(sge, "default", settings="SGE_QMASTER_PORT=7000; export SGE_QMASTER_PORT\n")
    cell(sge, "test")
    cell(tmp_path / "opt" / "sge", "default")
    variables = {"SGE_ROOT": "/sge", "SGE_CELL": "test", "SGE_QMASTER_PORT": "6000", "SGE_EXECD_PORT": "6001"}
    found = discover_sge(around(tmp_path, **variables)).clusters
    assert [(one.name, one.settings) for one in found] == [
        ("test", {"root": str(sge), "cell": "test", "qmaster_port": 6000, "execd_port": 6001}),
        ("gridengine", {"root": str(sge), "cell": "default", "qmaster_port": 7000}),
        ("gridengine", {"root": str(tmp_path / "opt" / "sge"), "cell": "default"}),
    ]


def test_commands_of_grid_engine_that_are_not_on_the_path(tmp_path: Path) -> None:
    """They are in the installation, in a directory for this kind of machine."""
    root = tmp_path / "opt" / "sge"
    cell(root, "default")
    written(root / "util" / "arch", "#!/bin/sh\necho lx-test\n", mode=0o755)
    written(root / "bin" / "lx-test" / "qconf", "#!/bin/sh\necho min_uid 0\n", mode=0o755)
    (found,) = discover_sge(around(tmp_path)).clusters
    assert found.settings["bin_directory"] == str(root / "bin" / "lx-test")


def test_a_grid_engine_that_takes_no_jobs_of_this_user(tmp_path: Path) -> None:
    """As Debian's takes none of root; said with the number that it asks for."""
    program(tmp_path, "qconf", f"#global:\nmin_uid      {os.geteuid() + 1}\nmin_gid  0\n")
    cell(tmp_path / "opt" / "sge", "default")
    found = discover_sge(around(tmp_path))
    assert found.clusters == ()
    assert f"min_uid {os.geteuid() + 1}" in found.left_out[0].why
    assert "ordinary user" in found.left_out[0].remedy


@pytest.mark.parametrize(("text", "least"), [("min_uid  1000\n", 1000), ("x\nmin_uid 0", 0), ("no_min_uid 7", 0)])
def test_the_smallest_user(text: str, least: int) -> None:
    """Of a configuration that says none, everybody."""
    assert smallest_user(text) == least


# -- PBS -------------------------------------------------------------------------------------------------------------


def test_pbs_by_its_configuration(tmp_path: Path) -> None:
    conf = written(tmp_path / "etc" / "pbs.conf", "PBS_EXEC=/opt/pbs\nPBS_SERVER=head.example.org\n#X=1\n")
    written(tmp_path / "opt" / "pbs" / "bin" / "qstat", "")
    (found,) = discover_pbs(around(tmp_path)).clusters
    assert found.name == "head"
    assert found.settings == {"conf": str(conf), "bin_directory": str(tmp_path / "opt" / "pbs" / "bin")}


def test_pbs_by_its_variables(tmp_path: Path) -> None:
    """PBS_CONF_FILE goes before /etc/pbs.conf, PBS_SERVER before what it says."""
    written(tmp_path / "etc" / "pbs.conf", "PBS_SERVER=a\n")
    conf = written(tmp_path / "b.conf", "PBS_SERVER=b\n")
    (found,) = discover_pbs(around(tmp_path, PBS_CONF_FILE="/b.conf", PBS_SERVER="c")).clusters
    assert (found.name, found.settings) == ("c", {"conf": str(conf), "server": "c"})


def test_torque_by_the_name_of_its_server(tmp_path: Path) -> None:
    written(tmp_path / "var" / "spool" / "torque" / "server_name", "batch.example.org\n")
    assert discover_pbs(around(tmp_path)).clusters == ()
    program(tmp_path, "qstat", "")
    (found,) = discover_pbs(around(tmp_path)).clusters
    assert (found.name, found.settings) == ("batch", {"dialect": "torque", "server": "batch.example.org"})


def test_nothing_is_found_where_nothing_is(tmp_path: Path) -> None:
    """Installed commands without a cluster say nothing of use."""
    written(tmp_path / "bin" / "scontrol", "#!/bin/sh\nexit 1\n", mode=0o755)
    for discover in (discover_slurm, discover_sge, discover_pbs):
        found = discover(around(tmp_path))
        assert (found.clusters, found.left_out) == ((), ())


def test_what_a_variable_names_and_is_not_there_is_told(tmp_path: Path) -> None:
    """Of PBS no other configuration is taken in its place, as PBS itself would not."""
    written(tmp_path / "etc" / "pbs.conf", "PBS_SERVER=a\n")
    variables = {discover_sge: {"SGE_ROOT": "/nowhere"}, discover_pbs: {"PBS_CONF_FILE": "/nowhere"}}
    for discover, environment in variables.items():
        found = discover(around(tmp_path, **environment))
        assert found.clusters == ()
        assert "/nowhere" in found.left_out[0].why


# ``koala check`` of a cluster that does not answer, and what it says of a cluster's MPI.

SILENT = ["sh", "-c", "sleep 600"]


class SilentLrm(ScriptedLrm):
    """An LRM whose commands do not answer, from a step on."""

    def __init__(self, commands: CommandRunner, *, starts: bool) -> None:
        super().__init__()
        self.commands = commands
        self.starts = starts

    async def start(self) -> None:
        if not self.starts:
            await self.commands.run(SILENT)

    async def check(self) -> tuple[CheckResult, ...]:
        self.order.append("check")
        if self.starts:
            # What is set right now is what a command may take: whoever starts is given its usual time.
            assert self.commands.patience is None
            with pytest.raises(LrmUnavailableError):
                await self.commands.run(SILENT, timeout=0.5)
        return ()

    async def nodes(self) -> tuple[()]:
        self.order.append("nodes")
        await self.commands.run(SILENT)
        return ()


def new_check(
    directory: Path, make: Callable[[CommandRunner], ScriptedLrm], tell: Callable[[str], None]
) -> tuple[ClusterCheck, list[ScriptedLrm]]:
    """Return the check of a cluster, and where its LRM is found afterwards."""
    made: list[ScriptedLrm] = []

    def factory(context: ClusterContext, _settings: BaseModel) -> Lrm:
        made.append(make(context.commands))
        return made[0]

    plugin = PluginDefinition(
        name="scripted", summary="a test's", settings=NoSettings, capabilities=Capabilities(), factory=factory
    )
    check = ClusterCheck(
        config=config(), plugins={"scripted": plugin}, directory=directory, tell=tell, center=None, timeout=1
    )
    return check, made


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clustercheck, "REACH_TIME", 0.5)


async def test_a_cluster_that_does_not_answer_is_asked_once_for_a_short_time(tmp_path: Path) -> None:
    """The commands of the plugin would wait for half a minute each."""
    check, made = new_check(tmp_path, lambda commands: SilentLrm(commands, starts=False), lambda _: None)
    results = await check.run()
    assert [(one.subject, one.ok, one.found) for one in results] == [("start", False, "sh did not answer within 0.5 s")]
    assert "is up; this check waits 10 s for its first answer" in results[0].remedy
    assert made[0].order == ["check"]
    assert made[0].commands.unanswered == 1  # type: ignore[attr-defined]


async def test_after_a_question_without_an_answer_there_is_one_more(tmp_path: Path) -> None:
    """That for nodes, for a short time; that for queues would wait as long."""
    check, made = new_check(tmp_path, lambda commands: SilentLrm(commands, starts=True), lambda _: None)
    results = await check.run()
    assert [(one.subject, one.found) for one in results if not one.ok] == [("nodes", "sh did not answer within 0.5 s")]
    assert [one.subject for one in results] == ["version", "nodes"]
    assert set(made[0].order) == {"check", "nodes", "jobs"}


@pytest.mark.parametrize("starts", [True, False])
async def test_a_placeholder_that_is_not_tried_is_told_of(tmp_path: Path, *, starts: bool) -> None:
    """Whoever sees no failure there would take it that submissions work."""
    check, _ = new_check(tmp_path, lambda commands: SilentLrm(commands, starts=starts), lambda _: None)
    site = load_site_text('[[clusters]]\nname = "a"\nplugin = "local"\n', {"local": koala_local.PLUGIN})
    center = TrialCenter(site, tmp_path / "trial", state=tmp_path)
    last = (await replace(check, center=center).run())[-1]
    assert (last.subject, last.ok) == ("placeholder", False)
    assert last.found.startswith("not tried, as the batch system does not answer")


async def test_what_is_waited_for_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SOON", 0.0)
    monkeypatch.setattr(progress, "TOLD_EVERY", 0.01)
    told: list[str] = []
    heard = anyio.Event()

    def tell(text: str) -> None:
        told.append(text)
        if sum("no answer" in one for one in told) > 1:
            heard.set()

    class Awaited(ScriptedLrm):
        """An LRM that answers when a person has been told that it does not."""

        async def start(self) -> None:
            with commands[0].timed("scontrol"):
                await heard.wait()

    commands: list[CommandRunner] = []

    def make(runner: CommandRunner) -> ScriptedLrm:
        commands.append(runner)
        return Awaited()

    check, _ = new_check(tmp_path, make, tell)
    with anyio.fail_after(60):
        assert all(one.ok for one in await check.run())
    assert told[:2] == ["starting", "starting: no answer of scontrol for 0 s"]
    assert commands[0].awaited is None


class LimitedLrm(ScriptedLrm):
    """An LRM whose default queue grants an hour."""

    async def nodes(self) -> tuple[Node, ...]:
        return (node(),)

    async def queues(self) -> tuple[Queue, ...]:
        return (Queue(name="main", up=True, processors=4, walltime_limit=3600, default=True),)


@pytest.mark.parametrize(
    ("seconds", "clusters", "limit", "ok"),
    [
        (7200, {"a"}, None, False),
        (7200, set(), None, False),
        (7200, {"b"}, None, True),
        (7200, {"a"}, 3600, True),
        (3600, {"a"}, None, True),
    ],
)
async def test_a_queue_that_grants_less_than_waiting_jobs_ask_for(
    tmp_path: Path,
    seconds: int,
    clusters: set[str],
    limit: int | None,
    ok: bool,  # noqa: FBT001 - a parameter
) -> None:
    """Their placeholders would wait there for ever, unless the site file says the limit."""
    check, _ = new_check(tmp_path, lambda _: LimitedLrm(), lambda _: None)
    asked = [
        AskedTime(job_id="3", seconds=60, clusters=frozenset()),
        AskedTime(job_id="4", seconds=seconds, clusters=frozenset(clusters)),
    ]
    (queue,) = [
        one
        for one in await replace(check, config=config(walltime_limit=limit), asked=asked).run()
        if one.subject == "queue"
    ]
    assert queue.ok is ok
    if not ok:
        assert queue.found == "main grants at most 3600 s; here job 4 would ask for 7200 s, and never start"
        assert "walltime_limit = 3600" in queue.remedy


class Asked:
    """An installation whose service has some jobs, or does not run."""

    def __init__(self, *jobs: JobReport, runs: bool = True) -> None:
        self.site = SiteConfig(clusters=(config(),))
        self.client = self
        self._jobs, self._runs = jobs, runs

    def pid(self) -> int | None:
        return 1 if self._runs else None

    def jobs(self, _limit: int) -> list[JobReport]:
        if not self._runs:
            raise AssertionError("a service that does not run is not asked")
        return list(self._jobs)


async def test_walltimes_of_waiting_jobs_are_taken_from_the_service() -> None:
    """With the time that placeholders have for the start; of jobs that run or are over nothing is to come."""
    jobs = [job_report(id=str(number), state=state, walltime=600) for number, state in enumerate(JobState)]
    asked = asked_times(Asked(*jobs))  # type: ignore[arg-type] # all that is used of one
    parameters = SiteConfig(clusters=(config(),)).parameters
    whole = 600 + int(parameters.launch_margin + parameters.placeholder_life)
    waiting = [str(number) for number, state in enumerate(JobState) if state in {JobState.WAITING, JobState.CLAIMING}]
    assert [(one.job_id, one.seconds) for one in asked] == [(number, whole) for number in waiting]
    assert asked_times(Asked(*jobs, runs=False)) == []  # type: ignore[arg-type]


# What koala check says of a cluster's MPI.

WELL = TaskEnd(reason=EndReason.EXITED, exit_code=0)


@pytest.mark.parametrize(
    ("printed", "said", "ok", "expected"),
    [
        ("it spawns\n", MpiResize.RESTART, True, 'say mpi_resize = "spawn" in the site file'),
        ("it spawns\n", MpiResize.SPAWN, True, "can spawn ("),
        ("", MpiResize.RESTART, True, "cannot spawn"),
        ("Abort(1)\n", MpiResize.SPAWN, False, "the site file says that it can"),
        ("no mpicc\n", MpiResize.SPAWN, True, "not tried"),
        ("no mpiexec.hydra\n", MpiResize.RESTART, True, "must name one in their environment"),
    ],
)
def test_what_was_found_is_told(*, printed: str, said: MpiResize, ok: bool, expected: str) -> None:
    found = judged(WELL, printed, said)
    assert found.ok is ok
    assert expected in found.found
    assert bool(found.remedy) is not ok


def test_a_probe_that_does_not_end_says_nothing_of_mpi() -> None:
    """It may be the node."""
    assert "not tried" in judged(None, "it spawns", MpiResize.SPAWN).found
