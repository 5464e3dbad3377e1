# SPDX-License-Identifier: Apache-2.0
"""Whether placeholders are submitted through a DRMAA library or by commands, and the reason that is told."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import structlog

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError, LrmUnreachableError
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
from koala_adapter.lrm.drmaa.client import DrmaaClient
from koala_adapter.lrm.drmaa.libraries import GRID_ENGINE, PBS, SLURM, Library, LibraryLoadError
from koala_adapter.lrm.drmaa.protocol import Opened
from koala_adapter.lrm.helper import HelperDiedError
from koala_adapter.testing import new_context
from koala_slurm.listing import SEPARATOR, all_here

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

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
        """Its path tells, or that of the file behind a link; one that tells nothing is asked when it is loaded."""
        other = library_at(tmp_path / "pbs-drmaa" / "libdrmaa.so")
        link = tmp_path / "libdrmaa.so"
        link.symlink_to(other)
        for path in (other, link):
            variables = {"DRMAA_LIBRARY_PATH": str(path)}
            assert find_libraries(None, SLURM, (), environment=variables, cache=NOTHING) == ()
            assert find_libraries(None, PBS, (), environment=variables, cache=NOTHING)

    def test_a_cache_that_cannot_be_read(self, tmp_path: Path) -> None:
        """It names no library."""
        assert cached_libraries(NOTHING) == ()
        (tmp_path / "cache").write_bytes(b"\xff\0" * 100)
        assert cached_libraries(tmp_path / "cache") == ()

    @pytest.mark.parametrize(
        ("directory", "shared"),
        [("/home/me/.koala", True), ("/home/local/x", False), ("/var/lib", False), ("/with blank/x", True)],
    )
    def test_shared_file_systems(self, directory: str, *, shared: bool) -> None:
        """The innermost mount decides, and of two at one place the later one."""
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
        """By their addresses."""
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
        """Each is said in one line."""
        settings = SubmissionSettings.model_validate({"submit_by": by})
        choice = choose(settings, found, library, obstacle=obstacle)
        assert choice.by == wanted
        assert reason in str(choice)


@pytest.mark.anyio
class TestVerified:
    """What is found when the library is loaded."""

    @pytest.fixture
    def submitter(self, tmp_path: Path) -> Callable[..., Submitter]:
        """Return what makes one on a file that stands for slurm-drmaa."""
        file = library_at(tmp_path / "slurm-drmaa" / "libdrmaa.so")

        def make(**settings: object) -> Submitter:
            chosen = SubmissionSettings.model_validate({"drmaa_library": file, **settings})
            return Submitter(chosen, new_context(tmp_path), expected=SLURM, variables={}, timeout=5)

        return make

    @staticmethod
    def answers(patch: pytest.MonkeyPatch, *answers: Opened | Exception) -> list[object]:
        """Have the library answer so, one after the other; return what is left."""
        left: list[object] = list(answers)

        async def opens(_: DrmaaClient) -> Opened:
            answer = left.pop(0)
            if isinstance(answer, Exception):
                raise answer
            assert isinstance(answer, Opened)
            return answer

        patch.setattr(DrmaaClient, "open", opens)
        return left

    @staticmethod
    async def here() -> bool:
        """All nodes are this host."""
        return True

    @staticmethod
    async def elsewhere() -> bool:
        """They are not."""
        return False

    async def test_good(self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch) -> None:
        """A library that is new enough is used, and asked once."""
        left = self.answers(monkeypatch, opened("DRMAA for Slurm 1.1.6"))
        one = submitter()
        await one.start(nodes_are_here=self.here)
        await one.settle()
        assert one.drmaa is not None
        assert not left

    @pytest.mark.parametrize(
        ("answer", "reason"),
        [
            (HelperDiedError("the DRMAA helper died"), "the DRMAA helper died"),
            ("DRMAA for Slurm 1.1.5", "is trusted from 1.1.6 on"),
        ],
    )
    async def test_not_to_be_trusted(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch, answer: object, reason: str
    ) -> None:
        """One that is too old or aborts is given up for commands, and the reason is kept."""
        found = opened(answer) if isinstance(answer, str) else answer
        assert isinstance(found, Opened | Exception)
        self.answers(monkeypatch, found)
        one = submitter()
        await one.start(nodes_are_here=self.here)
        assert one.drmaa is None
        assert reason in str(one.choice)

    async def test_old_one_on_which_a_site_insists(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is used."""
        self.answers(monkeypatch, opened("DRMAA for Slurm 1.1.5"))
        one = submitter(submit_by="drmaa")
        await one.start(nodes_are_here=self.here)
        assert one.drmaa is not None
        assert one.obstacle == ""

    async def test_one_that_the_batch_system_does_not_understand(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is given up unloaded, with the reason."""
        left = self.answers(monkeypatch, opened("DRMAA for Slurm 1.1.6"))
        one = submitter()
        await one.start(nodes_are_here=self.here, misfit=says(["it is too old"]))
        assert one.drmaa is None
        assert "it is too old" in str(one.choice)
        assert left

    @pytest.mark.parametrize(
        ("misfit", "answer", "reason"),
        [
            ("it is too old", None, "it is too old"),
            ("", HelperDiedError("the DRMAA helper died"), "the DRMAA helper died"),
            ("", LibraryLoadError("no such file"), "no such file"),
            ("", LrmRejectedError("it is one for PBS"), "it is one for PBS"),
        ],
        ids=["does not fit", "aborts", "missing", "another system"],
    )
    async def test_wrong_one_on_which_a_site_insists(
        self,
        submitter: Callable[..., Submitter],
        monkeypatch: pytest.MonkeyPatch,
        misfit: str,
        answer: Exception | None,
        reason: str,
    ) -> None:
        """Nothing is submitted, with reason and remedy, until it was put right; it is tried again each time."""
        wrong = [misfit]
        left = self.answers(monkeypatch, *[answer] * 4 if answer else (), opened("DRMAA for Slurm 1.1.6"))
        one = submitter(submit_by="drmaa")
        with structlog.testing.capture_logs() as logged:
            await one.start(misfit=says(wrong))
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
        wrong[0] = ""
        await one.look_for_obstacle()
        assert one.obstacle == ""
        assert not left
        await one.settle()

    @pytest.mark.parametrize("submit_by", ["drmaa", "auto"])
    async def test_batch_system_that_is_updated(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch, submit_by: str
    ) -> None:
        """After a submission that failed the library is looked at again; the way of submitting stays."""
        wrong = [""]
        self.answers(monkeypatch, *[opened("DRMAA for Slurm 1.1.6")] * 2)
        one = submitter(submit_by=submit_by)
        await one.start(nodes_are_here=self.here, misfit=says(wrong))
        wrong[0] = "it is too old"
        await one.settle()
        assert one.drmaa is not None
        one.drmaa.doubtful = True
        with pytest.raises(LrmUnreachableError, match="it is too old"):
            await one.settle()
        assert one.drmaa is not None
        assert "it is too old" in one.obstacle
        wrong[0] = ""
        await one.settle()
        assert one.obstacle == ""

    async def test_library_that_worked_may_die(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its batch system may be out of reach: that is no reason to refuse jobs."""
        self.answers(monkeypatch, opened("DRMAA for Slurm 1.1.6"), HelperDiedError("the DRMAA helper died"))
        one = submitter(submit_by="drmaa")
        await one.start()
        assert one.drmaa is not None
        one.drmaa.doubtful = True
        with pytest.raises(LrmUnreachableError, match="the DRMAA helper died"):
            await one.settle()
        assert one.obstacle == ""

    async def test_no_answer_at_first(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A batch system that does not answer says nothing of the library: it is asked again before a submission."""
        silent = LrmUnavailableError("no answer")
        self.answers(monkeypatch, silent, silent, opened("DRMAA for Slurm 1.1.6"))
        one = submitter()
        await one.start(nodes_are_here=self.here)
        with pytest.raises(LrmUnreachableError):
            await one.settle()
        await one.settle()
        assert one.drmaa is not None

    async def test_never_an_answer(self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch) -> None:
        """A library that hangs, where commands answer, holds up nothing for ever."""
        self.answers(monkeypatch, *[LrmUnavailableError("no answer")] * TRIES)
        one = submitter()
        await one.start(nodes_are_here=self.here)
        for _ in range(TRIES - 2):
            with pytest.raises(LrmUnreachableError):
                await one.settle()
        await one.settle()
        assert one.drmaa is None
        assert "no answer" in str(one.choice)

    async def test_scripts_that_nodes_do_not_see(
        self, submitter: Callable[..., Submitter], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Then sbatch is better, which needs no file; where a site insists, its scripts are its own business."""
        self.answers(monkeypatch, opened("DRMAA for Slurm 1.1.6"))
        one = submitter()
        await one.start(nodes_are_here=self.elsewhere)
        assert one.drmaa is None
        assert "no shared file system (script_directory)" in str(one.choice)
        insisting = submitter(submit_by="drmaa")
        await insisting.start(nodes_are_here=self.elsewhere)
        assert insisting.drmaa is not None


def says(problems: list[str]) -> Callable[[Path], Awaitable[str]]:
    """Return what tells of each library that the first of these is wrong with it."""

    async def misfit(_: Path) -> str:
        return problems[0]

    return misfit


def opened(implementation: object) -> Opened:
    """Return what a library says of itself."""
    return Opened(system="Slurm 22.05.8", implementation=str(implementation), version="1.0", contact="")
