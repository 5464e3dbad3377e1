# SPDX-License-Identifier: Apache-2.0
"""Client of a DRMAA helper process: typed requests, one at a time, to the helper of one cluster.

The bound of requests is kept here: each request counts as one, a submission of several jobs too. In order: reading
results, how to start a helper, the client.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import zipfile
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio
from pydantic import BaseModel, Field, ValidationError

import koala_adapter
from koala_adapter.errors import LrmError, LrmRejectedError, LrmUnavailableError, ProtocolError
from koala_adapter.lrm.drmaa.complaints import FailureKind
from koala_adapter.lrm.drmaa.libraries import error_of, library_of
from koala_adapter.lrm.drmaa.protocol import (
    AbandonBatches,
    ControlAction,
    ControlJobs,
    Controlled,
    Done,
    Failure,
    ListBatches,
    Listed,
    Opened,
    OpenSession,
    ReachLrm,
    Refusal,
    Result,
    SubmitJobs,
    Submitted,
    encode,
)
from koala_adapter.lrm.drmaa.scripts import folder_there
from koala_adapter.lrm.helper import OPEN, HelperClient, HelperDiedError
from koala_adapter.model import LrmJobId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from koala_adapter.lrm import ClusterContext
    from koala_adapter.lrm.drmaa.protocol import ListedBatch, Request, Template


# -- Reading the results of a helper -------------------------------------------------------------------------
# By pydantic, for speed: a listing of 100,000 jobs is 20 MiB.


class NumberedResult(BaseModel, extra="forbid"):
    """A result with the number of its request."""

    number: int
    result: Annotated[Result, Field(discriminator="result")]


def decode_result(line: bytes) -> NumberedResult:
    """Parse the result in a line. Raises ProtocolError."""
    try:
        return NumberedResult.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        message = f"line of the DRMAA helper not understood: {where}: {first['msg']}"
        raise ProtocolError(message, hint="plugin and helper must be of one version") from error


# -- Environment and command line of a helper, and its library -----------------------------------------------
# Debian's libdrmaa for Grid Engine is linked with jemalloc, which a running Python cannot load ("cannot allocate memory
# in static TLS block"). Two cures exist, both can be set only before a process starts; they are tried one after
# another.

HELPER_MODULE = "koala_adapter.lrm.drmaa.helper"
STATIC_TLS_BYTES = 4096
"""Room for the thread-local variables of libraries loaded late (glibc's own default is 512)."""

_STATIC_TLS = re.compile(r"(\S+): cannot allocate memory in static TLS block")


class Loading(StrEnum):
    """Ways in which the dynamic loader finds libdrmaa."""

    TUNABLES = "tunables"
    """GLIBC_TUNABLES=glibc.rtld.optional_static_tls=4096 (glibc 2.33 or newer; ignored by older ones)."""
    PRELOAD = "preload"
    """LD_PRELOAD of the library that did not find room."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperLaunch:
    """How to start the helper of one cluster."""

    library: Path | None
    """libdrmaa of this cluster's LRM; None: whichever the dynamic loader finds."""
    variables: Mapping[str, str] = field(default_factory=dict)
    """What chooses the cluster (SGE_ROOT, SLURM_CONF ...)."""
    loading: Loading = Loading.TUNABLES
    preload: str = "libjemalloc.so.2"

    def variables_added(self) -> dict[str, str]:
        """Return what the environment of the helper has in addition to that of any command."""
        environment = dict(self.variables)
        if self.library is not None:
            environment["DRMAA_LIBRARY_PATH"] = str(self.library)
        if self.loading is Loading.TUNABLES:
            environment["GLIBC_TUNABLES"] = f"glibc.rtld.optional_static_tls={STATIC_TLS_BYTES}"
        else:
            environment["LD_PRELOAD"] = self.preload
        # The drmaa library takes its encoding from the locale.
        environment["LC_ALL"] = "C.UTF-8"
        return environment

    def after(self, complaint: str) -> HelperLaunch | None:
        """Return the next way to try after the library failed to load; None when all were tried."""
        found = _STATIC_TLS.search(complaint)
        if found is None or self.loading is Loading.PRELOAD:
            return None
        return replace(self, loading=Loading.PRELOAD, preload=found[1])


def command_here(variables: Mapping[str, str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return command line and variables of a helper on this host, which imports us from where we were imported."""
    roots = (variables.get("PYTHONPATH", ""), str(Path(koala_adapter.__file__).resolve().parents[1]))
    path = os.pathsep.join(filter(None, roots))
    return (sys.executable, "-m", HELPER_MODULE), {**variables, "PYTHONPATH": path}


# -- At a site -----------------------------------------------------------------------------------------------
# Nothing of koala is installed there. The helper and the drmaa library, which is pure Python, go as a zip on standard
# input before the first request, and are kept in an unnamed file for as long as the helper runs.

LEDGER_NAME = "drmaa-ledger.sqlite"
UNPACK = """\
import os, sys, tempfile
with tempfile.TemporaryFile() as file:
    left = int(sys.argv[1])
    while left:
        piece = sys.stdin.buffer.read(min(left, 65536))
        if not piece:
            sys.exit("the helper did not arrive whole")
        left -= len(piece)
        file.write(piece)
    file.flush()
    sys.path.insert(0, "/proc/self/fd/%d" % file.fileno())
    from {module} import main
    sys.exit(main())
"""


@cache
def parcel() -> bytes:
    """Return the helper with the drmaa library as a zip. Raises LrmUnavailableError where there is no such library."""
    here = Path(__file__).parent
    packages = HELPER_MODULE.split(".")[:-1]
    files = {"/".join([*packages[:depth], "__init__.py"]): b"" for depth in range(1, len(packages) + 1)}
    own = (here / f"{name}.py" for name in ("complaints", "ledger", "helper"))
    files |= {"/".join([*packages, path.name]): path.read_bytes() for path in own}
    found = find_spec("drmaa")
    for place in () if found is None else found.submodule_search_locations or ():
        files |= {f"drmaa/{path.name}": path.read_bytes() for path in Path(place).glob("*.py")}
    if "drmaa/__init__.py" not in files:
        raise LrmUnavailableError("the drmaa library is missing", hint="pip install 'koala-adapter[drmaa]'")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


def command_there(interpreter: str) -> tuple[str, ...]:
    """Return the command line of a helper at a site, which reads :func:`parcel` first."""
    return (interpreter, "-I", "-S", "-c", UNPACK.format(module=HELPER_MODULE), str(len(parcel())))


# -- The client ----------------------------------------------------------------------------------------------

R = TypeVar("R", Opened, Submitted, Controlled, Listed, Done)

SINGLE_SECONDS = 0.5
"""How much longer a request may take for each of several jobs that are submitted one by one."""
SINGLE_AT_ONCE = 10
"""Jobs of a submission one by one that are one request to the helper."""
LOG_NAME = "drmaa-helper.log"


class DrmaaClient(HelperClient["Request", "Result"]):
    """The DRMAA helper of one cluster. Requests go one after another."""

    called = "DRMAA"

    def __init__(
        self,
        context: ClusterContext,
        launch: HelperLaunch,
        *,
        contact: str = "",
        keeps_ledger: bool = False,
        request_timeout: float = 20.0,
    ) -> None:
        super().__init__(context, log=LOG_NAME, request_timeout=request_timeout)
        self.launch = launch
        """How the helper is started: after the first success, the way that worked."""
        self._open_request = OpenSession(contact=contact)
        if keeps_ledger:
            folder = context.state_directory if self._host.here else folder_there("drmaa", context)
            self._open_request = replace(self._open_request, ledger=str(folder / LEDGER_NAME))
        self._opened: Opened | None = None
        self.library = library_of(str(launch.library or ""))
        """Which library it is: by what it says of itself, and by where it lies until it was loaded."""

    # -- requests ------------------------------------------------------------------------------------------------

    async def open(self) -> Opened:
        """Start the helper, open the session, and return what library and system it found."""
        async with self._turn():
            return await self._ready()

    async def submit(
        self, template: Template, count: int, *, index_variable: str | None = None
    ) -> tuple[LrmJobId, ...]:
        """Submit ``count`` jobs and return their ids in the order of their indices.

        They go as one bulk, or one by one, each with its index in ``index_variable`` of its environment. One by one
        they go in portions, so that what is urgent need not wait for all of them. When one is refused, those before
        it are ended.
        """
        ids: list[LrmJobId] = []
        portion = count if index_variable is None else SINGLE_AT_ONCE
        for first in range(1, count + 1, portion):
            request = SubmitJobs(
                template=template,
                count=min(portion, count + 1 - first),
                index_variable=index_variable,
                first=first,
                total=count,
            )
            try:
                further = 0.0 if index_variable is None else SINGLE_SECONDS * request.count
                result = await self._ask(request, Submitted, admitted=first > 1, further=further)
            except LrmRejectedError:
                with anyio.CancelScope(shield=True), contextlib.suppress(LrmError):
                    await self.control(ControlAction.TERMINATE, ids, urgent=True)
                raise
            ids += [LrmJobId(id_) for id_ in result.ids]
        return tuple(ids)

    async def control(
        self, action: ControlAction, ids: Sequence[LrmJobId], *, urgent: bool = False
    ) -> tuple[Refusal, ...]:
        """Apply an action to each job; return those with which it did not work."""
        if not ids:
            return ()
        result = await self._ask(ControlJobs(action=action, ids=tuple(ids)), Controlled, urgent=urgent)
        return result.refusals

    async def batches(self, prefix: str) -> tuple[ListedBatch, ...]:
        """Return the batches of the ledger whose name begins with ``prefix``."""
        try:
            return await self._batches(prefix)
        except HelperDiedError:
            # Reading twice does no harm, and its death may only have come to light by the first attempt.
            return await self._batches(prefix)

    async def _batches(self, prefix: str) -> tuple[ListedBatch, ...]:
        await self.open()
        request = ListBatches(prefix=prefix, tells_success=self.library.tells_success)
        return (await self._ask(request, Listed)).batches

    async def reach(self) -> None:
        """Return once the LRM has answered a request without effect."""
        await self._ask(ReachLrm(), Done)

    async def abandon(self, keys: Sequence[str]) -> None:
        """Drop batches of unknown outcome from the ledger's reports."""
        await self._ask(AbandonBatches(keys=tuple(keys)), Done, urgent=True)

    # -- the helper ----------------------------------------------------------------------------------------------

    async def _ask(
        self, request: Request, wanted: type[R], *, urgent: bool = False, admitted: bool = False, further: float = 0.0
    ) -> R:
        if not admitted:
            await self._commands.admit(urgent=urgent)
        async with self._turn():
            await self._ready(urgent=urgent)
            with self._commands.timed(type(request).__name__):
                return _expect(await self._exchange(request, request.op, further=further), wanted)

    async def _ready(self, *, urgent: bool = False) -> Opened:
        await self._running()
        if self._opened is None:
            await self._commands.admit(urgent=urgent)
            with self._commands.timed(type(self._open_request).__name__):
                self._opened = await self._open()
            self.library = library_of(self._opened.system, self._opened.implementation)
        return self._opened

    async def _open(self) -> Opened:
        result = await self._exchange(self._open_request, OPEN)
        while isinstance(result, Failure) and result.kind is FailureKind.LIBRARY:
            await self._stop()
            other = self.launch.after(result.message)
            if other is None:
                break
            self.launch = other
            await self._start()
            result = await self._exchange(self._open_request, OPEN)
        return _expect(result, Opened)

    # -- what HelperClient asks of its subclasses ----------------------------------------------------------------

    async def _launched(self) -> tuple[Sequence[str], Mapping[str, str]]:
        added = self.launch.variables_added()
        if self._host.here:
            return command_here(added)
        facts = await self._host.facts()
        if (ledger := self._open_request.ledger) is not None:
            folder, _ = await self._host.make_directory(str(Path(ledger).parent))
            self._open_request = replace(self._open_request, ledger=str(Path(folder) / LEDGER_NAME))
        return command_there(facts.interpreter), added

    def _first_words(self) -> bytes:
        return b"" if self._host.here else parcel()

    def _encode(self, number: int, request: Request) -> bytes:
        return encode(number, request)

    def _decode(self, line: bytes) -> tuple[int, Result]:
        answer = decode_result(line)
        return answer.number, answer.result

    def _forget_session(self) -> None:
        self._opened = None


def _expect(result: Result, wanted: type[R]) -> R:
    if isinstance(result, wanted):
        return result
    if isinstance(result, Failure):
        raise error_of(result.kind, result.message)
    message = f"the DRMAA helper answered {result.result!r}"
    raise LrmUnavailableError(message, hint="plugin and helper must be of one version")
