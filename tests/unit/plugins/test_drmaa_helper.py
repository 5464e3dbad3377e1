# SPDX-License-Identifier: Apache-2.0
"""The choice of a DRMAA library, its helper's lines, and the helper's ledger."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from hypothesis import example, given
from hypothesis import strategies as st

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError, LrmUnreachableError, ProtocolError
from koala_adapter.lrm.drmaa.choice import (
    TRIES,
    FoundLibrary,
    SubmissionSettings,
    Submitter,
    cached_libraries,
    choose,
    find_libraries,
    is_shared,
)
from koala_adapter.lrm.drmaa.client import DrmaaClient, NumberedResult, decode_result
from koala_adapter.lrm.drmaa.complaints import FailureKind
from koala_adapter.lrm.drmaa.ledger import KEEP_SECONDS, KEEP_UNKNOWN_SECONDS, TIDIED_EVERY, JobEnd, Ledger
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, PBS, SLURM, Library, LibraryLoadError
from koala_adapter.lrm.drmaa.protocol import (
    Controlled,
    Done,
    Failure,
    JobStatus,
    Listed,
    ListedBatch,
    ListedJob,
    Opened,
    Refusal,
    Result,
    SubmitJobs,
    Submitted,
    Template,
    encode,
)
from koala_adapter.lrm.helper import HelperDiedError
from koala_adapter.testing import new_context
from koala_slurm.listing import SEPARATOR, all_here

# Whether placeholders are submitted through a DRMAA library or by commands, and the reason that is told.

NOTHING = Path("/nonexistent")
FOUND = FoundLibrary(path=Path("/opt/libdrmaa.so"), by="its usual place")


def library_at(path: Path) -> Path:
    """Make a file in the place of a library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


class TestFiles:
    """What is found without loading anything."""

    def test_order(self, tmp_path: Path) -> None:
        """The setting goes first, then the variable, then the usual places, then the loader's cache."""
        named, usual, cached = (library_at(tmp_path / name / "libdrmaa.so") for name in ("v", "slurm-drmaa", "c"))
        cache = tmp_path / "ld.so.cache"
        cache.write_bytes(b"glibc-ld.so.cache1.1\0libdrmaa.so\0" + bytes(cached) + b"\0/lib/libc.so.6\0")
        everything = {"environment": {"DRMAA_LIBRARY_PATH": str(named)}, "cache": cache}

        def found(given: Path | None, **where: object) -> tuple[Path, str] | None:
            settings = {**everything, **where}
            places = settings.pop("places", (f"{tmp_path}/slurm-*/libdrmaa.so*",))
            libraries = find_libraries(given, SLURM, places, **settings)  # type: ignore[arg-type] # a table of keywords
            return (libraries[0].path, libraries[0].by) if libraries else None

        assert found(NOTHING) == (NOTHING, "drmaa_library")
        assert found(None) == (named, "$DRMAA_LIBRARY_PATH")
        assert found(None, environment={}) == (usual, "its usual place")
        assert found(None, environment={}, places=()) == (cached, "the loader's cache")
        assert found(None, environment={}, places=(), cache=NOTHING) is None

    def test_another_systems_library_is_passed_over(self, tmp_path: Path) -> None:
        other = library_at(tmp_path / "pbs-drmaa" / "libdrmaa.so")
        link = tmp_path / "libdrmaa.so"
        link.symlink_to(other)
        for path in (other, link):
            variables = {"DRMAA_LIBRARY_PATH": str(path)}
            assert find_libraries(None, SLURM, (), environment=variables, cache=NOTHING) == ()
            assert find_libraries(None, PBS, (), environment=variables, cache=NOTHING)

    def test_a_cache_that_cannot_be_read(self, tmp_path: Path) -> None:
        assert cached_libraries(NOTHING) == ()
        (tmp_path / "cache").write_bytes(b"\xff\0" * 100)
        assert cached_libraries(tmp_path / "cache") == ()

    @pytest.mark.parametrize(
        ("directory", "shared"),
        [("/home/me/.koala", True), ("/home/local/x", False), ("/var/lib", False), ("/with blank/x", True)],
    )
    def test_shared_file_systems(self, directory: str, *, shared: bool) -> None:
        mounts = (
            "rootfs / rootfs rw 0 0\n/dev/a / ext4 rw 0 0\nserver:/home /home ext4 rw 0 0\n"
            "server:/home /home nfs4 rw 0 0\n/dev/b /home/local xfs rw 0 0\nx /with\\040blank lustre rw 0 0\nbad\n"
        )
        assert is_shared(Path(directory), mounts) is shared

    @pytest.mark.parametrize(
        ("listing", "here"),
        [
            ("n1|n1|127.0.0.1\nn2|n2|::1\n", True),
            ("n1|n1|host\nn2|n2|host.example.org\n", True),
            ("n1|n1|127.0.0.1\nn2|n2|10.0.0.2\n", False),
            ("n1|n1|other\n", False),
            ("garbage\n", False),
            ("", False),
        ],
    )
    def test_nodes_that_are_this_host(self, listing: str, *, here: bool) -> None:
        assert all_here(listing.replace("|", SEPARATOR), host="host.example.org") is here


class TestChoice:
    """The choice by files, and its reason."""

    @pytest.mark.parametrize(
        ("by", "found", "library", "obstacle", "wanted", "reason"),
        [
            ("commands", FOUND, SLURM, "", "commands", "submit_by = 'commands'"),
            ("drmaa", None, PBS, "", "drmaa", "submit_by = 'drmaa'"),
            ("auto", FOUND, SLURM, "", "drmaa", "found by its usual place"),
            ("auto", FOUND, GRID_ENGINE, "", "drmaa", "found by its usual place"),
            ("auto", None, SLURM, "", "commands", "no DRMAA library of Slurm was found"),
            ("auto", FOUND, SLURM, "two words", "commands", "/opt/libdrmaa.so cannot be used: two words"),
            ("auto", FOUND, PBS, "", "commands", "pbs-drmaa is used only with submit_by = 'drmaa'"),
        ],
    )
    def test_reasons(  # noqa: PLR0917 - the columns of the table
        self, by: str, found: FoundLibrary | None, library: Library, obstacle: str, wanted: str, reason: str
    ) -> None:
        settings = SubmissionSettings.model_validate({"submit_by": by})
        choice = choose(settings, found, library, obstacle=obstacle)
        assert choice.by == wanted
        assert reason in str(choice)


GOOD, OLD = "DRMAA for Slurm 1.1.6", "DRMAA for Slurm 1.1.5"
DIED = HelperDiedError("the DRMAA helper died")
SILENT = LrmUnavailableError("no answer")


class TriedLibrary:
    """A file that stands for slurm-drmaa, and what it does when it is loaded."""

    def __init__(self, directory: Path, patch: pytest.MonkeyPatch) -> None:
        """``patch``: by which nothing is loaded."""
        self._context = new_context(directory)
        self._file = library_at(directory / "slurm-drmaa" / "libdrmaa.so")
        self.answers: list[str | Exception] = []
        """What it says of itself, or how it fails, each time that it is loaded."""
        self.misfit = ""
        """Why the batch system would not understand it."""
        patch.setattr(DrmaaClient, "open", lambda _: self._open())

    async def _open(self) -> Opened:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Opened(system="Slurm 22.05.8", implementation=answer, version="1.0", contact="")

    async def _misfit(self, _: Path) -> str:
        return self.misfit

    async def start(self, *answers: str | Exception, here: bool = True, **settings: object) -> Submitter:
        """Return a started submitter; ``here``: all nodes are this host."""
        self.answers = [*answers]
        chosen = SubmissionSettings.model_validate({"drmaa_library": self._file, **settings})
        one = Submitter(chosen, self._context, expected=SLURM, variables={}, timeout=5)

        async def nodes_are_here() -> bool:
            return here

        await one.start(nodes_are_here=nodes_are_here, misfit=self._misfit)
        return one


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TriedLibrary:
    """Give a library."""
    return TriedLibrary(tmp_path, monkeypatch)


class TestVerified:
    """What is found when the library is loaded."""

    async def test_good(self, library: TriedLibrary) -> None:
        one = await library.start(GOOD)
        await one.settle()
        assert one.drmaa is not None
        assert not library.answers

    @pytest.mark.parametrize(
        ("answer", "here", "reason"),
        [
            (DIED, True, "the DRMAA helper died"),
            (OLD, True, "is trusted from 1.1.6 on"),
            (GOOD, False, "no shared file system (script_directory)"),
        ],
        ids=["it dies", "too old", "nodes do not see the scripts"],
    )
    async def test_not_to_be_used(
        self, library: TriedLibrary, answer: str | Exception, reason: str, *, here: bool
    ) -> None:
        one = await library.start(answer, here=here)
        assert one.drmaa is None
        assert reason in str(one.choice)

    @pytest.mark.parametrize(("answer", "here"), [(OLD, True), (GOOD, False)])
    async def test_one_on_which_a_site_insists(self, library: TriedLibrary, answer: str, *, here: bool) -> None:
        one = await library.start(answer, here=here, submit_by="drmaa")
        assert one.drmaa is not None
        assert one.obstacle == ""

    async def test_one_that_the_batch_system_does_not_understand(self, library: TriedLibrary) -> None:
        """It is given up before it is loaded."""
        library.misfit = "it is too old"
        one = await library.start(GOOD)
        assert one.drmaa is None
        assert "it is too old" in str(one.choice)
        assert library.answers

    @pytest.mark.parametrize(
        ("misfit", "answer", "reason"),
        [
            ("it is too old", None, "it is too old"),
            ("", DIED, "the DRMAA helper died"),
            ("", LibraryLoadError("no such file"), "no such file"),
            ("", LrmRejectedError("it is one for PBS"), "it is one for PBS"),
        ],
        ids=["does not fit", "aborts", "missing", "another system"],
    )
    async def test_wrong_one_on_which_a_site_insists(
        self, library: TriedLibrary, misfit: str, answer: Exception | None, reason: str
    ) -> None:
        """Each submission is refused with the reason and the remedy, until the library is found good."""
        library.misfit = misfit
        with structlog.testing.capture_logs() as logged:
            one = await library.start(*[answer] * 4 if answer else (), GOOD, submit_by="drmaa")
            with pytest.raises(LrmUnreachableError, match=reason):
                await one.settle()
            (result,) = await one.check()
            await one.look_for_obstacle()
        warnings = [entry for entry in logged if entry["log_level"] == "warning"]
        assert [entry["reason"] for entry in warnings] == [one.obstacle]
        assert (result.ok, result.subject, result.found) == (False, "placeholders", one.obstacle)
        assert reason in one.obstacle
        assert result.remedy in one.obstacle
        assert "submit_by = 'auto'" in result.remedy
        library.misfit = ""
        await one.look_for_obstacle()
        assert one.obstacle == ""
        assert not library.answers
        await one.settle()

    @pytest.mark.parametrize("submit_by", ["drmaa", "auto"])
    async def test_batch_system_that_is_updated(self, library: TriedLibrary, submit_by: str) -> None:
        one = await library.start(GOOD, GOOD, submit_by=submit_by)
        library.misfit = "it is too old"
        await one.settle()
        assert one.drmaa is not None
        one.drmaa.doubtful = True
        with pytest.raises(LrmUnreachableError, match="it is too old"):
            await one.settle()
        assert one.drmaa is not None
        assert "it is too old" in one.obstacle
        library.misfit = ""
        await one.settle()
        assert one.obstacle == ""

    async def test_library_that_worked_may_die(self, library: TriedLibrary) -> None:
        """Its batch system may be out of reach: that is no reason to refuse jobs."""
        one = await library.start(GOOD, DIED, submit_by="drmaa")
        assert one.drmaa is not None
        one.drmaa.doubtful = True
        with pytest.raises(LrmUnreachableError, match="the DRMAA helper died"):
            await one.settle()
        assert one.obstacle == ""

    async def test_no_answer_at_first(self, library: TriedLibrary) -> None:
        """A batch system that does not answer says nothing of the library: it is asked again before a submission."""
        one = await library.start(SILENT, SILENT, GOOD)
        with pytest.raises(LrmUnreachableError):
            await one.settle()
        await one.settle()
        assert one.drmaa is not None

    async def test_never_an_answer(self, library: TriedLibrary) -> None:
        one = await library.start(*[SILENT] * TRIES)
        for _ in range(TRIES - 2):
            with pytest.raises(LrmUnreachableError):
                await one.settle()
        await one.settle()
        assert one.drmaa is None
        assert "no answer" in str(one.choice)


# Lines between a plugin and its DRMAA helper.

RESULTS: tuple[Result, ...] = (
    Opened(system="SGE 8.1.9", implementation="SGE", version="1.0", contact="session=x"),
    Submitted(ids=("1.1", "1.2")),
    Controlled(refusals=(Refusal(id="1.1", kind=FailureKind.NOT_FOUND, message="gone"),)),
    Listed(
        batches=(
            ListedBatch(
                key="k1",
                count=2,
                submitted_at=1.5,
                jobs=(ListedJob(id="1.1", status=JobStatus.DONE, exit_code=3, ended_at=9.25),),
            ),
        )
    ),
    Done(),
    Failure(kind=FailureKind.UNAVAILABLE, message="unable to contact qmaster"),
)


def test_a_request_is_one_line() -> None:
    awkward = Template(
        name="k1",
        remote_command="/bin/sh",
        arguments=("/a b/'\n\"\\é.sh",),
        working_directory="/tmp",
        output_path="/tmp/k1.{index}.out",
        native_specification="-l h_rt=60",
    )
    line = encode(7, SubmitJobs(template=awkward, count=50))
    assert line.partition(b"\n")[2] == b""
    found = json.loads(line)
    assert (found["number"], found["request"]["op"]) == (7, "submit")
    assert found["request"]["template"]["arguments"] == [*awkward.arguments]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_results_survive_the_line(result: Result) -> None:
    numbered = NumberedResult(number=7, result=result)
    assert decode_result(numbered.model_dump_json().encode()) == numbered


@example(b'{"number": 1, "result": {}}')
@example(b'{"number": 1, "result": {"result": "done", "extra": 1}}')
@example(b'{"number": 1, "result": {"result": "listed", "batches": [{"key": "k", "count": 1, "submitted_at": "x"}]}}')
@example(b'{"number": 1, "result": {"result": "done"}, "more": 1}')
@given(st.binary(max_size=200))
def test_what_is_no_result_is_refused(line: bytes) -> None:
    """No bytes lead to anything but a message or a ProtocolError."""
    with pytest.raises(ProtocolError):
        decode_result(line)


def test_the_helper_starts_without_what_only_its_parent_needs() -> None:
    """One runs for each cluster, and is started again when it has died: it takes a quarter of the time so."""
    heavy = ("pydantic", "anyio", "asyncio", "structlog", "importlib.metadata", "koala_adapter.lrm.contract")
    code = f"import sys, koala_adapter.lrm.drmaa.helper; print(*[one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


# The ledger by which batches are found again after a crash, although DRMAA cannot find a job by its name.

NOW = 1_000_000.0


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """Give an empty ledger."""
    with closing(Ledger(tmp_path / "ledger.sqlite")) as one:
        yield one


def test_ids_and_ends(ledger: Ledger, tmp_path: Path) -> None:
    end = JobEnd(at=NOW + 5, failed=True, exit_code=None, signal=9, aborted=True)
    ledger.intend("k1", 2, NOW)
    ledger.add("k1", ["7.1", "7.2"])
    ledger.end({"7.1": end})
    with closing(Ledger(tmp_path / "ledger.sqlite")) as another:
        batch = another.batches()["k1"]
    assert (batch.ids, batch.live(), batch.ends["7.1"]) == (("7.1", "7.2"), ("7.2",), end)


def test_jobs_one_by_one(ledger: Ledger) -> None:
    """A batch has the ids that are known so far; one of which nothing is in the LRM is not listed in the end."""
    ledger.intend("k1", 3, NOW)
    ledger.intend("k2", 1, NOW)
    assert [(one.size, one.ids, one.submitted_at) for one in ledger.batches().values()] == [(3, (), NOW), (1, (), NOW)]
    ledger.add("k1", ["7"])
    ledger.add("k1", ["8"])
    ledger.tidy(NOW + 2 * KEEP_SECONDS)
    assert (ledger.batches()["k1"].ids, ledger.batches()["k1"].size) == (("7", "8"), 3)
    ledger.settle(["k1", "k2", "never was"])
    assert [(key, one.ids, one.size) for key, one in ledger.batches().items()] == [("k1", ("7", "8"), 2)]


def test_only_what_is_asked_for(ledger: Ledger) -> None:
    """A prefix leaves out the rest; a character that means something to SQL means nothing here."""
    for key in ("a%b-1", "a%b-2", "axb-3", "b"):
        ledger.intend(key, 1, NOW)
    assert list(ledger.batches("a%b")) == ["a%b-1", "a%b-2"]


def test_ledger_is_private(ledger: Ledger, tmp_path: Path) -> None:
    ledger.intend("k1", 1, NOW)
    assert {path.stat().st_mode & 0o077 for path in tmp_path.iterdir()} == {0}


def test_only_what_is_over_is_forgotten(ledger: Ledger) -> None:
    """Batches over for a day, and unknown ones of two weeks ago, go; live, recent and other unknown ones stay."""
    old, end = NOW - KEEP_UNKNOWN_SECONDS - 1, JobEnd(at=NOW - KEEP_SECONDS - 1)
    for key, count, at, ids, ends in (
        ("over", 1, old, ["1.1"], {"1.1": end}),
        ("half", 2, old, ["2.1", "2.2"], {"2.1": end}),
        ("lost", 1, old, [], {}),
        ("unknown", 1, NOW - 60, [], {}),
        ("recent", 1, old, ["3.1"], {"3.1": JobEnd(at=NOW - 5, exit_code=4)}),
    ):
        ledger.intend(key, count, at)
        ledger.add(key, ids)
        ledger.end(ends)
    before = ledger.batches()
    ledger.tidy(NOW)
    after = ledger.batches()
    assert set(after) == {"half", "unknown", "recent"}
    assert after == {key: before[key] for key in after}


def test_two_writers(tmp_path: Path, ledger: Ledger) -> None:
    def write(name: str) -> None:
        with closing(Ledger(tmp_path / "ledger.sqlite")) as mine:
            for number in range(8):
                mine.intend(f"{name}{number}", 1, NOW)
                mine.add(f"{name}{number}", [f"{name}.{number}"])
                mine.tidy(NOW + number * TIDIED_EVERY)

    threads = [threading.Thread(target=write, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {len(batch.ids) for batch in ledger.batches().values()} == {1}
    assert len(ledger.batches()) == 16


def test_a_ledger_that_stays_open_does_not_grow_for_ever(ledger: Ledger) -> None:
    ledger.tidy(NOW)
    for number in range(3):
        ledger.intend(f"k{number}", 1, NOW)
        ledger.add(f"k{number}", [str(number)])
        ledger.end({str(number): JobEnd(at=NOW)})
    ledger.tidy(NOW + TIDIED_EVERY - 1)
    assert len(ledger.batches()) == 3
    ledger.tidy(NOW + KEEP_SECONDS + 1)
    assert ledger.batches() == {}


@pytest.mark.parametrize("id_", ["7.1", "'; DROP TABLE jobs; --", "\udcff".encode("utf-8", "surrogateescape").hex()])
def test_any_id(ledger: Ledger, id_: str) -> None:
    ledger.intend("k", 1, NOW)
    ledger.add("k", [id_])
    assert ledger.batches()["k"].ids == (id_,)
