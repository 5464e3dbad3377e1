# SPDX-License-Identifier: Apache-2.0
"""Whether the placeholders of a cluster are submitted through a DRMAA library or by commands, and why.

For clusters whose jobs are read by commands. The choice begins with files (:func:`choose`), is verified when the
cluster is started (:class:`Submitter`), and does not change after the first submission. Plugins import this module;
the modules that use a DRMAA library are imported only for a cluster that has one.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import structlog
from pydantic import BaseModel, Field

from koala_adapter.errors import (
    ConfigurationError,
    LrmError,
    LrmRejectedError,
    LrmUnavailableError,
    LrmUnreachableError,
)
from koala_adapter.lrm import drmaa
from koala_adapter.lrm.contract import CheckResult
from koala_adapter.lrm.drmaa.libraries import OTHER, Library, LibraryLoadError, library_of
from koala_adapter.lrm.drmaa.scripts import ScriptDelivery, ScriptStore, script_folder
from koala_adapter.lrm.helper import HelperDiedError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.drmaa.protocol import Opened
    from koala_adapter.lrm.drmaa.transport import DrmaaTransport
    from koala_adapter.model import BatchKey

log = structlog.get_logger()


# -- Settings ------------------------------------------------------------------------------------------------

SubmitBy = Literal["auto", "drmaa", "commands"]


class SubmissionSettings(BaseModel, defer_build=True):
    """How placeholders are submitted."""

    submit_by: SubmitBy = Field(
        default="auto",
        description="How placeholders are submitted: 'drmaa', through the batch system's DRMAA library, in a helper "
        "process; 'commands', by its own commands; 'auto', through a library that can be trusted with it where one is "
        "found, else by commands (`koala docs drmaa`).",
    )
    drmaa_library: Path | None = Field(
        default=None,
        description="libdrmaa of this batch system; by default $DRMAA_LIBRARY_PATH, where the batch system has it, "
        "the loader's cache, /usr/lib, /usr/local and /opt.",
    )
    script_directory: Path | None = Field(
        default=None,
        description="Where scripts of placeholders that are submitted through DRMAA are kept (mode 0700), seen by the "
        "nodes under the same path, in a folder for each cluster and state directory; default: in the state directory.",
    )


# -- Files: libraries, and file systems that nodes share -----------------------------------------------------

LIBRARY_VARIABLE = "DRMAA_LIBRARY_PATH"
LOADER_CACHE = Path("/etc/ld.so.cache")
MOUNTS = Path("/proc/self/mounts")
SHARED_FILE_SYSTEMS = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "9p", "afs", "auristorfs", "ocfs2", "gfs2"),
        *("lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2", "panfs", "wekafs"),
        *("fuse.ceph", "fuse.glusterfs", "fuse.juicefs", "fuse.mfs", "fuse.moosefs", "fuse.lizardfs"),
    }
)
"""Types of file systems that several hosts mount, by their names in /proc/mounts."""

_CACHED = re.compile(rb"/[^\0]*/libdrmaa\.so[^\0/]*")
_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLibrary:
    """A file that is a DRMAA library, and by what it was found."""

    path: Path
    by: str


def find_libraries(
    given: Path | None,
    expected: Library,
    places: Iterable[str],
    *,
    environment: Mapping[str, str],
    cache: Path = LOADER_CACHE,
) -> tuple[FoundLibrary, ...]:
    """Return the files that may be the library of a batch system, the likeliest first, each once.

    A file that a site names is taken alone, as it is. Others are passed over when their path says that they are
    another system's; which one it is of the rest, it tells when it is loaded. ``places``: patterns of files.
    """
    if given is not None:
        return (FoundLibrary(path=given, by="drmaa_library"),)
    libraries: dict[str, FoundLibrary] = {}
    for found in _candidates(places, environment, cache):
        behind = os.path.realpath(found.path)
        if library_of(str(found.path), behind) in {expected, OTHER}:
            libraries.setdefault(behind, found)
    return tuple(libraries.values())


def _candidates(places: Iterable[str], environment: Mapping[str, str], cache: Path) -> Iterator[FoundLibrary]:
    named = environment.get(LIBRARY_VARIABLE)
    if named and Path(named).is_file():
        yield FoundLibrary(path=Path(named), by=f"${LIBRARY_VARIABLE}")
    for place in places:
        root = Path(Path(place).anchor)
        for path in sorted(root.glob(str(Path(place).relative_to(root)))):
            if path.is_file():
                yield FoundLibrary(path=path, by="its usual place")
    for path in cached_libraries(cache):
        if path.is_file():
            yield FoundLibrary(path=path, by="the loader's cache")


def cached_libraries(cache: Path) -> tuple[Path, ...]:
    """Return the files called libdrmaa.so that the dynamic loader knows; their paths stand in its cache as they are."""
    try:
        content = cache.read_bytes()
    except OSError:
        return ()
    return tuple(Path(os.fsdecode(found)) for found in dict.fromkeys(_CACHED.findall(content)))


def is_shared(directory: Path, mounts: str) -> bool:
    """Tell whether a directory lies on a file system that several hosts mount. ``mounts``: the text of /proc/mounts."""
    best, shared = Path(), False
    path = Path(os.path.realpath(directory))
    for line in mounts.splitlines():
        words = line.split()
        if len(words) < 3:  # noqa: PLR2004 - device, where, type
            continue
        where = Path(_OCTAL.sub(lambda found: chr(int(found[1], 8)), words[1]))
        # The last one mounted at a place is the one that is seen.
        if path.is_relative_to(where) and len(where.parts) >= len(best.parts):
            best, shared = where, words[2] in SHARED_FILE_SYSTEMS
    return shared


def mounted() -> str:
    """Return which file systems are mounted, as /proc/mounts tells it."""
    try:
        return MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""


# -- The choice ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How placeholders are submitted, and why."""

    by: Literal["drmaa", "commands"]
    reason: str
    library: Path | None = None

    def __str__(self) -> str:
        """Choice and reason in one line."""
        if self.by == "commands":
            return f"by commands: {self.reason}"
        return f"through DRMAA, {self.library or 'libdrmaa.so'}: {self.reason}"


def choose(settings: SubmissionSettings, found: FoundLibrary | None, expected: Library, *, obstacle: str) -> Choice:
    """Choose library or commands, by the files that are there.

    ``obstacle``: why submissions of this cluster cannot go through DRMAA, if so. Where the site wants DRMAA all the
    same, each submission is refused with that reason.
    """
    if settings.submit_by == "commands":
        return Choice(by="commands", reason="submit_by = 'commands'")
    if settings.submit_by == "drmaa":
        return Choice(by="drmaa", reason="submit_by = 'drmaa'", library=found.path if found else None)
    if found is None:
        return Choice(by="commands", reason=f"no DRMAA library of {expected.system} was found")
    if expected.not_chosen:
        return Choice(
            by="commands", reason=f"{expected.name} is used only with submit_by = 'drmaa': {expected.not_chosen}"
        )
    if obstacle:
        return Choice(by="commands", reason=f"{found.path} cannot be used: {obstacle}")
    return Choice(by="drmaa", reason=f"found by {found.by}", library=found.path)


TRIES = 3
"""How often a library that does not answer is tried before anything was submitted."""


class Submitter:
    """How the placeholders of one cluster are submitted: the choice in force, and the library where it is DRMAA.

    The choice is verified by :meth:`start`, or before the first submission where the batch system could not be asked
    at the start. A library that turns out wrong is given up for commands then, with ``submit_by = 'auto'``; after the
    first submission nothing changes, because an outcome that is not known is looked up by name in either case. A wrong
    library that is not given up is an ``obstacle``, until it is found good.
    """

    def __init__(
        self,
        settings: SubmissionSettings,
        context: ClusterContext,
        *,
        expected: Library,
        variables: Mapping[str, str],
        timeout: float,
        places: Sequence[str] = (),
        obstacle: str = "",
        delivery: ScriptDelivery = ScriptDelivery.PRIVATE,
    ) -> None:
        """``variables``: what chooses the cluster. ``places``: where it keeps its library, before the usual places.

        ``timeout``: seconds after which a call counts as hung. ``delivery``: how scripts get to the nodes, where a site
        can choose.
        """
        self._context = context
        self._settings = settings
        self._expected = expected
        self._variables = variables
        self._timeout = timeout
        if context.host.here:
            found = find_libraries(
                settings.drmaa_library, expected, (*places, *expected.places), environment=os.environ
            )
            self.choice = choose(settings, found[0] if found else None, expected, obstacle=obstacle)
        elif settings.submit_by == "drmaa":
            message = f"cluster {context.cluster}: a DRMAA library is used only on this host, not at another site"
            raise ConfigurationError(message, hint="set submit_by = 'auto'")
        else:
            found = ()
            self.choice = Choice(by="commands", reason="the batch system is at another site")
        self._others = list(found[1:])
        self._settled = self.choice.by == "commands"
        self._tries = 0
        self._misfit: Callable[[Path], Awaitable[str]] | None = None
        self.obstacle = ""
        """What is wrong with a library that must be used, and the remedy; empty where nothing is known."""
        folder = script_folder(settings.script_directory, context)
        self.scripts = ScriptStore(folder, context.host, delivery=delivery)
        self.drmaa = None if self._settled else self._transport(self.choice.library)
        """The DRMAA transport in use; None when placeholders are submitted by commands."""

    def _transport(self, library: Path | None) -> DrmaaTransport:
        launch = drmaa.HelperLaunch(library=library, variables=self._variables)
        client = drmaa.DrmaaClient(self._context, launch, request_timeout=self._timeout)
        return drmaa.DrmaaTransport(client, self.scripts, expected=self._expected)

    async def sweep(self, live: Collection[str]) -> None:
        """Delete scripts of which no live job has been seen for long, also those of an earlier choice."""
        await self.scripts.sweep(live, time.monotonic())

    def forget(self, key: BatchKey) -> None:
        """Delete the script of a submission: it will not be read any more."""
        self.scripts.remove(key)

    async def start(
        self,
        *,
        nodes_are_here: Callable[[], Awaitable[bool]] | None = None,
        misfit: Callable[[Path], Awaitable[str]] | None = None,
    ) -> None:
        """Verify the choice, as far as the batch system answers now.

        ``nodes_are_here`` tells whether this host is all nodes; None: it makes no difference, because without DRMAA
        the nodes would have to see the same file. ``misfit`` tells why the batch system would not understand a library,
        if that can be seen in its file; it is asked again until a library has been found good.
        """
        self._misfit = misfit
        if self.drmaa is None:
            log.info("how placeholders are submitted", cluster=self._context.cluster, how=str(self.choice))
            return
        if self._settings.submit_by == "auto" and nodes_are_here is not None:
            directory = self.scripts.directory
            if not is_shared(directory, mounted()) and not await nodes_are_here():
                reason = f"the nodes may not see {directory}, which is on no shared file system (script_directory)"
                await self._give_up(reason)
                return
        await self.settle(patient=True)

    async def settle(self, *, patient: bool = False) -> None:
        """Verify the choice if that has not been done, or a submission has failed since.

        Raises LrmError, unless ``patient``, where it cannot be verified, or a library must be used that is wrong.
        """
        while (drmaa := self.drmaa) is not None and (drmaa.doubtful or not self._settled):
            problem = await self._verify(drmaa, patient=patient)
            if problem is None:
                return
            if problem:
                await self._give_up(problem, instead=self._others.pop(0) if self._others else None)
                continue
            if not self._settled or self.obstacle:
                log.info("how placeholders are submitted", cluster=self._context.cluster, how=str(self.choice))
            self._settled, drmaa.doubtful, self.obstacle = True, False, ""

    async def _verify(self, drmaa: DrmaaTransport, *, patient: bool) -> str | None:
        """Return why a library that may be passed over fails; None when that is not known yet.

        Raises LrmError as `settle`.
        """
        replaceable = self._settings.submit_by == "auto" and not self._settled
        try:
            if self._misfit and self.choice.library and (problem := await self._misfit(self.choice.library)):
                raise LrmRejectedError(problem)
            opened = await drmaa.client.open()
            drmaa.require(opened)
        except LrmError as error:
            self._tries += 1
            # One that has worked may end where its batch system is out of reach.
            died = isinstance(error, HelperDiedError) and not self._settled
            wrong = died or isinstance(error, LrmRejectedError | LibraryLoadError)
            if replaceable and (wrong or self._tries >= TRIES):
                return error.message
            if wrong:
                self._note_obstacle(error.message)
            if patient:
                return None
            if wrong or isinstance(error, LrmUnavailableError):
                # Nothing was submitted, so nothing has to be looked for.
                reason, hint = (self.obstacle, "") if wrong else (error.message, error.hint)
                raise LrmUnreachableError(reason, hint=hint) from error
            raise
        return self._problem_of(opened) if replaceable else ""

    def _note_obstacle(self, problem: str) -> None:
        """Store and log why the required library fails."""
        obstacle = f"{self.choice.library or 'libdrmaa.so'} cannot be used: {problem} ({self._remedy})"
        if obstacle != self.obstacle:
            log.warning("placeholders cannot be submitted", cluster=self._context.cluster, reason=obstacle)
        self.obstacle = obstacle

    @property
    def _remedy(self) -> str:
        if self._settings.submit_by == "auto":
            return "start koala again: then it chooses anew how to submit"
        return f"name another {self._expected.name} in drmaa_library, or set submit_by = 'auto'"

    async def look_for_obstacle(self) -> None:
        """Try again a library that was found wrong."""
        if self.obstacle:
            with contextlib.suppress(LrmError):
                await self.settle(patient=True)

    def _problem_of(self, opened: Opened) -> str:
        """Return why submissions through a working library are not safe."""
        least = self._expected.least_version
        found = re.search(r"(\d+)\.(\d+)\.(\d+)[^.0-9]*$", opened.implementation)
        if least and found and tuple(map(int, found.groups())) < least:
            return f"it is {opened.implementation}, and is trusted from {'.'.join(map(str, least))} on"
        return ""

    async def _give_up(self, problem: str, *, instead: FoundLibrary | None = None) -> None:
        """Switch to another library or to commands."""
        if self.drmaa is not None:
            await self.drmaa.close()
        library = str(self.choice.library)
        log.warning("a DRMAA library is not used", cluster=self._context.cluster, library=library, reason=problem)
        self._tries = 0
        if instead is None:
            self.choice = Choice(by="commands", reason=f"{library} cannot be used: {problem}")
            self._settled, self.drmaa = True, None
        else:
            self.choice = Choice(by="drmaa", reason=f"found by {instead.by}", library=instead.path)
            self.drmaa = self._transport(instead.path)

    async def check(self) -> tuple[CheckResult, ...]:
        """Report the choice; with DRMAA also try the library and check the directory of scripts."""
        await self.settle(patient=True)
        if self.obstacle:
            return (CheckResult(subject="placeholders", ok=False, found=self.obstacle, remedy=self._remedy),)
        chosen = CheckResult(subject="placeholders", ok=True, found=f"submitted {self.choice}")
        return (chosen,) if self.drmaa is None else (chosen, *await self.drmaa.check())

    async def close(self) -> None:
        """End the helper; jobs go on."""
        if self.drmaa is not None:
            await self.drmaa.close()


def one_text(words: Sequence[str]) -> str:
    """Return arguments as a native specification. Raises LrmRejectedError for what it cannot hold."""
    problem = obstacle_in(words)
    if problem:
        raise LrmRejectedError(problem, hint="change the directives of this cluster, or submit_by = 'commands'")
    return " ".join(words)


def obstacle_in(words: Iterable[str]) -> str:
    """Return why arguments do not fit a native specification; empty when they do."""
    for word in words:
        if not word or any(character.isspace() for character in word):
            return f"{word!r} cannot go through DRMAA: a native specification is divided at blanks"
    return ""
