# SPDX-License-Identifier: Apache-2.0
"""The server of ``koala web``: addresses of pages, what the service is asked for each, and the rules for requests."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Protocol
from urllib.parse import parse_qs

import uvicorn
from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from koala_adapter.api.asyncclient import AsyncClient
from koala_adapter.api.client import Client
from koala_adapter.errors import JobNotFoundError, KoalaError, ServiceUnavailableError
from koala_adapter.report.selection import JobSelection
from koala_adapter.report.views import style
from koala_adapter.web.access import Access, Asked, Refusal, same
from koala_adapter.web.pages import (
    PERIODS,
    SHOWN_OUTPUTS,
    Frame,
    Search,
    begin_of,
    chart_page,
    error_page,
    history_page,
    job_page,
    output_page,
    outputs,
    overview,
    tail,
)

if TYPE_CHECKING:
    import asyncio
    import socket
    from collections.abc import AsyncIterator, Callable
    from datetime import tzinfo
    from pathlib import Path

    from starlette.datastructures import QueryParams
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from koala_adapter.report.sitevalues import NegotiationReport
    from koala_adapter.report.values import JobReport


# -- What is shown -------------------------------------------------------------------------------------------


class Jobs(Protocol):
    """Source of job reports: a client of the service, or its journal when none runs (protocol)."""

    def job(self, job_id: str, /) -> JobReport:
        """Return the report of a job. Raises JobNotFoundError."""

    def jobs(self, limit: int, selection: JobSelection | None = None, /) -> list[JobReport]:
        """Return the latest jobs, or those of a selection, in order of submission."""

    def negotiations(self, *, job_id: str = ..., number: int = ..., limit: int = ...) -> list[NegotiationReport]:
        """Return the latest negotiations, oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """State directory, access and permissions of the pages."""

    directory: Path
    information: Callable[[], Jobs]
    """Returns the service, or its journal; raises ServiceUnavailableError when there has never been one."""
    access: Access
    actions: bool = False
    """Jobs can be cancelled."""
    zone: tzinfo | None = None
    """None: that of this host."""

    def frame(self, source: Jobs | None) -> Frame:
        """Return what all pages share."""
        return Frame(
            base=self.access.base,
            where=str(self.directory),
            now=time.time(),
            live=isinstance(source, Client),
            zone=self.zone,
            proof=self.access.proof if self.actions and isinstance(source, Client) else "",
        )


# -- Pages ---------------------------------------------------------------------------------------------------
# They ask the service, or read files, so each is made in a thread.

MOST_JOBS = 3000
"""Jobs in a chart, the latest ones."""
RECENT = 500
"""Jobs among which the first page looks for unfinished ones."""
END_OF_OUTPUT = 4096
"""Bytes of each file of output on the page of a job."""
LONGEST_OUTPUT = 65_536
"""Bytes of a file of output on its own page."""
LONGEST_FORM = 4096
AGAIN = 3000
"""Milliseconds after which a browser asks again for events."""
ICON = (
    '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="9" height="4" y="1" fill="#1f5fbf"/>'
    '<rect width="9" height="4" x="4" y="6" fill="#1b7f4b"/><rect width="6" height="4" x="10" y="11" fill="#7a3fa0"/>'
    "</svg>"
)


class Pages:
    """Handlers of admitted requests."""

    def __init__(self, shown: Shown) -> None:
        """``shown``: the state directory and its service."""
        self._shown = shown

    def routes(self) -> list[Route]:
        """Return the routes below the first page."""
        return [
            Route("/", self.first),
            Route("/jobs/{job_id}", self.job),
            Route("/jobs/{job_id}/output", self.output),
            Route("/jobs/{job_id}/cancel", self.cancel, methods=["POST"]),
            Route("/history", self.history),
            Route("/chart", self.chart),
            Route("/events", self.events),
            Route("/style.css", lambda _: Response(style(), media_type="text/css")),
            Route("/live.js", lambda _: Response(script(), media_type="text/javascript")),
            Route("/icon.svg", lambda _: Response(ICON, media_type="image/svg+xml")),
        ]

    def first(self, _request: Request) -> Response:
        """Answer with the first page: clusters and jobs."""
        source = self._shown.information()
        clusters = source.clusters() if isinstance(source, Client) else []
        return HTMLResponse(overview(self._shown.frame(source), clusters, source.jobs(RECENT)))

    def job(self, request: Request) -> Response:
        """Answer with the page of one job."""
        source = self._shown.information()
        report = source.job(request.path_params["job_id"])
        found = outputs(report)
        ends = ((one, tail(report, one, END_OF_OUTPUT)) for one in found if not one.attempt)
        shown = [(one, end) for (one, end), _ in zip(ends, range(SHOWN_OUTPUTS), strict=False) if end is not None]
        negotiations = source.negotiations(job_id=report.id)
        return HTMLResponse(job_page(self._shown.frame(source), report, negotiations, found, shown))

    def output(self, request: Request) -> Response:
        """Answer with the end of one process's output."""
        source, asked = self._shown.information(), request.query_params
        report = source.job(request.path_params["job_id"])
        attempt, rank = max(0, _number(asked, "attempt")), _number(asked, "rank")
        wanted = (attempt, asked.get("component"), rank, asked.get("stream"))
        found = (one for one in outputs(report) if (one.attempt, one.component, one.rank, one.stream) == wanted)
        one = next(found, None)
        end = None if one is None else tail(report, one, LONGEST_OUTPUT)
        if one is None or end is None:
            raise JobNotFoundError(f"job {report.id} has no such output")
        return HTMLResponse(output_page(self._shown.frame(source), report, one, end))

    def history(self, request: Request) -> Response:
        """Answer with the jobs of a search."""
        source, asked = self._shown.information(), request.query_params
        search = Search(
            words=asked.get("q", ""),
            state=asked.get("state", ""),
            since=asked.get("since", "all"),
            first=max(0, _number(asked, "first")),
        )
        frame = self._shown.frame(source)
        return HTMLResponse(history_page(frame, search, source.jobs(search.most, search.selection(frame.now))))

    def chart(self, request: Request) -> Response:
        """Answer with the charts of jobs."""
        source, since = self._shown.information(), request.query_params.get("since", "1d")
        chosen = since if since in PERIODS else "1d"
        frame = self._shown.frame(source)
        selection = JobSelection(since=begin_of(chosen, frame.now))
        return HTMLResponse(chart_page(frame, chosen, source.jobs(MOST_JOBS, selection), MOST_JOBS))

    async def cancel(self, request: Request) -> Response:
        """Cancel a job, where that is allowed, and redirect to its page."""
        if not self._shown.actions:
            return PlainTextResponse("koala web was started without --allow-actions.\n", status_code=403)
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > LONGEST_FORM:
                return PlainTextResponse("This is no form of ours.\n", status_code=413)
        form = parse_qs(body.decode("utf-8", "replace"))
        if not same(form.get("proof", [""])[0], self._shown.access.proof):
            return PlainTextResponse("The form is not from a page of ours.\n", status_code=403)
        job_id = request.path_params["job_id"]
        await to_thread.run_sync(Client(self._shown.directory).cancel, job_id)
        return RedirectResponse(self._shown.frame(None).job(job_id), status_code=303)

    async def events(self, _request: Request) -> Response:
        """Stream an event to the browser at each change."""
        headers = {"X-Accel-Buffering": "no"}
        return StreamingResponse(self._changes(), media_type="text/event-stream", headers=headers)

    async def _changes(self) -> AsyncIterator[str]:
        yield f"retry: {AGAIN}\n\n"
        with suppress(ServiceUnavailableError):
            async for _ in AsyncClient(self._shown.directory).watch_jobs(1):
                yield f"data: {time.time()}\n\n"
        yield "data: no service\n\n"


def script() -> str:
    """Answer with the script of the pages."""
    return resources.files("koala_adapter.web").joinpath("live.js").read_text(encoding="utf-8")


def _number(asked: QueryParams, name: str) -> int:
    """Return a number from the query; -1 when it is missing or invalid."""
    text = asked.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else -1  # noqa: PLR2004 - as long as a rank is


# -- Rules for requests --------------------------------------------------------------------------------------

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Guard:
    """ASGI middleware that refuses requests without permission and adds security headers."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        """``app``: answers admitted requests."""
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                added = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *added]}
            await send(message)

        if scope["type"] != "http":
            return
        request = Request(scope)
        asked = Asked(
            method=request.method,
            hosts=tuple(request.headers.getlist("host")),
            origin=request.headers.get("origin"),
            cookie=request.cookies.get(self._access.cookie, ""),
        )
        answer = self._refusal_or_login(request, asked) or self._app
        if answer is self._app:
            scope.get("state", {}).get(PROVED, bool)()
        await answer(scope, receive, send_guarded)

    def _refusal_or_login(self, request: Request, asked: Asked) -> Response | None:
        """Return the answer to a refused request or to the link with the token; None: pass the request on."""
        access = self._access
        token = request.query_params.get("token")
        if (
            request.scope["path"] == "/"
            and token is not None
            and access.refusal_of_any(asked) is None
            and same(token, access.token)
        ):
            found = RedirectResponse(access.base, status_code=303)
            found.set_cookie(access.cookie, access.session, path=access.base, httponly=True, samesite="strict")
            return found
        refusal = access.refusal(asked)
        return None if refusal is None else _refused(refusal)


def _refused(refusal: Refusal) -> Response:
    return PlainTextResponse(f"{refusal.reason}\n", status_code=refusal.status)


# -- The server ----------------------------------------------------------------------------------------------

MOST_CONNECTIONS = 128
"""More are answered that there are too many."""
MOST_UNPROVEN = 32
"""Connections without a request that was let in: with one more, the oldest of them has to go."""
TIME_TO_PROVE = 10.0
"""Seconds for a connection to bring such a request."""
PROVED = "proved"
"""Entry of the state of a request: what is called when it is let in."""
LEAVING = 1
"""Seconds that are left to answers when the server ends; events would go on for ever."""


def application(shown: Shown) -> ASGIApp:
    """Return the ASGI application."""

    def trouble(_request: Request, error: Exception) -> Response:
        known = error if isinstance(error, KoalaError) else KoalaError(str(error))
        status = 404 if isinstance(error, JobNotFoundError) else 503
        source = None
        with suppress(KoalaError):
            source = shown.information()
        return HTMLResponse(error_page(shown.frame(source), known), status_code=status)

    routes = [Mount(f"/{shown.access.place}", routes=Pages(shown).routes())]
    return Guard(Starlette(routes=routes, exception_handlers={KoalaError: trouble}), shown.access)


class Connection(H11Protocol):
    """Connection with a limit of time for its first valid request; strangers could else use up all descriptors."""

    unproven: asyncio.TimerHandle | None = None
    """What ends it; None: it has proved itself."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in the class above
        """Count the connection and start its time limit."""
        super().connection_made(transport)
        self.made = self.loop.time()
        self.unproven = self.loop.call_later(TIME_TO_PROVE, transport.abort)
        self.app_state = {**self.app_state, PROVED: self.prove}
        others = [one for one in self.connections if isinstance(one, Connection) and one.unproven is not None]
        if len(others) > MOST_UNPROVEN:
            oldest = min(others, key=lambda one: one.made)
            oldest.prove()
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop counting the connection."""
        self.prove()
        super().connection_lost(exc)

    def prove(self) -> None:
        """Lift the time limit: a request on this connection was admitted."""
        if self.unproven is not None:
            self.unproven.cancel()
            self.unproven = None


def server(shown: Shown) -> uvicorn.Server:
    """Return the uvicorn server, without a log of requests, as the first address has the token."""
    config = uvicorn.Config(
        application(shown), http=Connection, log_config=None, log_level="error", access_log=False, lifespan="off",
        ws="none", server_header=False, limit_concurrency=MOST_CONNECTIONS, backlog=MOST_CONNECTIONS,
        timeout_graceful_shutdown=LEAVING, proxy_headers=False,
    )  # fmt: skip
    return uvicorn.Server(config)


def serve(shown: Shown, listener: socket.socket) -> None:
    """Serve on a socket until Ctrl-C or SIGTERM."""
    server(shown).run(sockets=[listener])
