# SPDX-License-Identifier: Apache-2.0
"""The pages of ``koala web`` over a real connection, made of the journal of a state directory."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC
from http.client import HTTPConnection, HTTPResponse
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

import pytest
from lxml import html

from koala_adapter.api.offline import JournalView
from koala_adapter.outcome import COMPLETED
from koala_adapter.report.values import AttemptReport
from koala_adapter.web.access import Access
from tests.unit.api.jobreports import keep_reports
from tests.unit.report.test_report import FOREIGN, component, failed, ran

pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

NAMES = FOREIGN[:4]


@dataclass(kw_only=True)
class Browser:
    """Connects to a port and sends what a browser does, or an enemy would."""

    access: Access
    port: int
    cookie: str = ""

    def ask(self, path: str, *, method: str = "GET", body: str = "", **headers: str) -> HTTPResponse:
        """Return the answer to one request; its content has been read into ``content``."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            cookie = {"Cookie": self.cookie} if self.cookie else {}
            connection.request(method, path, body=body or None, headers={**cookie, **headers})
            answer = connection.getresponse()
            self.content = answer.read().decode()
            return answer
        finally:
            connection.close()

    def open_link(self) -> None:
        """Open the link with the token, and keep the cookie."""
        answer = self.ask(f"/?token={self.access.token}")
        assert (answer.status, answer.headers["Location"]) == (303, self.access.base)
        cookie = answer.headers["Set-Cookie"]
        assert {"HttpOnly", "SameSite=strict", f"Path={self.access.base}"} <= set(cookie.split("; "))
        self.cookie = cookie.partition(";")[0]

    def page(self, path: str = "", status: int = 200) -> html.HtmlElement:
        """Return a page below the first one."""
        assert self.ask(self.access.base + path).status == status
        return html.fromstring(self.content)


@contextmanager
def served(directory: Path, *, actions: bool = False) -> Iterator[Browser]:
    """Serve the pages of a state directory in which no service runs."""
    from koala_adapter.web.server import Shown, server  # noqa: PLC0415 - where the extra is installed

    access = Access()
    shown = Shown(
        directory=directory, information=lambda: JournalView(directory=directory), access=access, actions=actions,
        zone=UTC,
    )  # fmt: skip
    web, listener = server(shown), socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Browser(access=access, port=listener.getsockname()[1])
    finally:
        web.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def two_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, Path]]:
    """Serve a state directory with two jobs, one of which has failed and has printed something."""
    directory = tmp_path_factory.mktemp("state")
    output = directory / "jobs" / "2" / "x"
    output.mkdir(parents=True)
    (output / "0.out").write_text("<script>alert(1)</script>\n\x1b[31mred\n")
    (output / "1.err").write_bytes(b"first line\n" + b"x" * 200_000 + b"\nlast line\n")
    bad = replace(failed(ran(2, component("x", "a", 2)), "rank 1 was killed"), output_directory=str(output.parent))
    keep_reports(directory, [replace(ran(1, component("x", "a", 1)), outcome=COMPLETED), bad])
    with served(directory) as found:
        yield found, directory


@pytest.fixture
def browser(two_jobs: tuple[Browser, Path]) -> Browser:
    """Return a browser that has no cookie yet."""
    return replace(two_jobs[0])


# -- Who gets the pages


@pytest.mark.parametrize("path", ["", "jobs/1", "jobs/2/output", "history", "chart", "events", "style.css", "live.js"])
def test_a_second_user_of_the_host_gets_nothing_without_the_token(browser: Browser, path: str) -> None:
    """Whether they know the path or not, with no cookie or a wrong one."""
    for place in (browser.access.base + path, f"/{path}"):
        for cookie in ("", f"{browser.access.cookie}=x", "\xe9=\xff"):
            browser.cookie = cookie
            assert browser.ask(place).status == 401
            assert browser.content == "Open the link that koala web has printed: it has a token.\n"


@pytest.mark.parametrize("token", ["", "x", "%ff", "{session}", "{proof}"])
def test_a_wrong_token_gets_no_cookie(browser: Browser, token: str) -> None:
    shown = token.format(session=browser.access.session, proof=browser.access.proof)
    answer = browser.ask(f"/?token={shown}")
    assert (answer.status, answer.headers["Set-Cookie"]) == (401, None)


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1.evil.example", "", "[::1", "a@b"])
def test_a_forged_host_gets_nothing(browser: Browser, host: str) -> None:
    """As a browser sends it when a name server says that evil.example is here (DNS rebinding)."""
    link = f"/?token={browser.access.token}"
    browser.open_link()
    for path in (browser.access.base, link):
        answer = browser.ask(path, Host=host.format(port=browser.port))
        assert (answer.status, answer.headers["Set-Cookie"]) == (421, None)


@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8080", "LOCALHOST", "[::1]:99", "192.0.2.7"])
def test_addresses_and_localhost_are_good_with_any_port(browser: Browser, host: str) -> None:
    """A tunnel may have another port than we, and no page of others has an address for its name."""
    browser.open_link()
    assert browser.ask(browser.access.base, Host=host).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}"])
def test_a_forged_origin_gets_nothing(browser: Browser, origin: str) -> None:
    """Also not from another port of this host, where another user may have a page."""
    browser.open_link()
    assert browser.ask(browser.access.base, Origin=origin.format(port=browser.port)).status == 403
    own = f"http://127.0.0.1:{browser.port}"
    assert browser.ask(browser.access.base, Origin=own).status == 200


def test_strangers_cannot_keep_the_owner_out(browser: Browser, caplog: pytest.LogCaptureFixture) -> None:
    """Connections that prove nothing make room, and what they say is in no log of the owner."""
    browser.open_link()
    with ExitStack() as strangers:
        held = [strangers.enter_context(socket.create_connection(("127.0.0.1", browser.port))) for _ in range(200)]
        for one in held[-10:]:
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        held[-11].sendall(b"no request\r\n\r\n")
        assert browser.page().findtext(".//h1") == "Clusters and jobs"
        held[0].settimeout(60)
        with suppress(ConnectionResetError):
            assert held[0].recv(1) == b"", "the oldest one had to go"
    assert not caplog.records


def test_every_answer_forbids_scripts_and_frames_of_others(browser: Browser) -> None:
    """By its headers, also where it is refused; and no page needs a script or style within itself."""
    browser.open_link()
    for path in ("", "jobs/2", "history", "chart", "style.css", "nothing"):
        answer = browser.ask(browser.access.base + path)
        policy = answer.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; style-src 'self'; script-src 'self'; ")
        assert "unsafe" not in policy
        assert (answer.headers["X-Frame-Options"], answer.headers["Cache-Control"]) == ("DENY", "no-store")
        if "html" in answer.headers["Content-Type"]:
            page = html.fromstring(browser.content)
            assert page.xpath("//style | //script[not(@src)] | //@style | //@*[starts-with(name(), 'on')]") == []


# -- What is on them


def test_the_first_page_has_the_jobs(browser: Browser) -> None:
    """Latest first; it says that no service runs. Of a job that there is not it is said that there is none."""
    browser.open_link()
    page = browser.page()
    assert page.xpath("//*[@id='ended']//td[1]/a/@href") == [f"{browser.access.base}jobs/{n}" for n in (2, 1)]
    assert "from the journal: no service runs" in page.text_content()
    assert "77" in browser.page("jobs/77", 404).text_content()


def test_a_job_has_its_timeline_reason_and_output(browser: Browser) -> None:
    """The output is text, and of a long one there is the end."""
    browser.open_link()
    page = browser.page("jobs/2")
    timeline = page.xpath("//ol[@class='timeline']/li")
    assert [re.sub(r"^\S+ \S+ ", "", one.text_content()) for one in timeline] == [
        "submitted",
        "all processors held after 20 s, launched",
        "failed: rank 1 was killed",
    ]
    texts = page.xpath("//pre/text()")
    assert texts[0] == "<script>alert(1)</script>\n\\x1b[31mred\n"
    assert texts[1] == "last line\n"
    assert "200,012 bytes before this are left out." in page.text_content()
    (address,) = page.xpath("//h3/a[contains(., 'stderr')]/@href")
    whole = browser.page(address.removeprefix(browser.access.base))
    assert whole.xpath("//pre/text()") == ["last line\n"]


@pytest.mark.parametrize(
    "asked",
    [
        {"component": "..", "rank": "0", "stream": "stdout"},
        {"component": "x/../x", "rank": "0", "stream": "stdout"},
        {"component": "x", "rank": "../0", "stream": "stdout"},
        {"component": "x", "rank": "0", "stream": "../journal"},
        {"component": "x", "rank": "\u0660", "stream": "stdout"},
        {},
    ],
)
def test_no_other_file_is_shown(browser: Browser, asked: dict[str, str]) -> None:
    """Whatever is asked for in place of a component, rank and stream that are there."""
    browser.open_link()
    assert "has no such output" in browser.page(f"jobs/2/output?{urlencode(asked)}", 404).text_content()


def test_the_output_of_an_earlier_attempt_has_a_link(tmp_path: Path) -> None:
    """It is not among that of the latest one, and each is on a page of its own."""
    for place, text in ((tmp_path / "x", "second"), (tmp_path / "_attempts" / "1" / "x", "first")):
        place.mkdir(parents=True)
        (place / "0.out").write_text(text)
    bad = failed(ran(1, component("x", "a", 1)))
    attempt = AttemptReport(
        number=1, launched_at=85.0, ended_at=90.0, clusters=("a",), outcome=bad.outcome or COMPLETED
    )
    keep_reports(tmp_path, [replace(bad, attempts=(attempt,), output_directory=str(tmp_path))])
    with served(tmp_path) as browser:
        browser.open_link()
        page = browser.page("jobs/1")
        assert page.xpath("//*[@id='output']//pre/text()") == ["second"]
        (link,) = page.xpath("//*[@id='output']//li/a")
        assert link.text == "attempt 1: x/0 stdout, 5 bytes"
        assert browser.page(link.get("href").removeprefix(browser.access.base)).xpath("//pre/text()") == ["first"]


def test_a_link_in_the_place_of_output_is_not_followed(browser: Browser, two_jobs: tuple[Browser, Path]) -> None:
    directory = two_jobs[1]
    (directory / "secret").write_text("secret")
    (directory / "jobs" / "2" / "x" / "5.out").symlink_to(directory / "secret")
    browser.open_link()
    browser.page("jobs/2/output?component=x&rank=5&stream=stdout", 404)
    assert "secret" not in browser.content


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ["2", "1"]),
        ({"q": "KILLED"}, ["2"]),
        ({"q": "nothing"}, []),
        ({"state": "any failure"}, ["2"]),
        ({"state": "completed"}, ["1"]),
        ({"since": "1d"}, []),
        ({"first": "1"}, ["1"]),
        ({"q": '"><script>'}, []),
        ({"first": "x", "since": "ever"}, ["2", "1"]),
    ],
)
def test_history_is_searched(browser: Browser, asked: dict[str, str], found: list[str]) -> None:
    """By words, state and time; what was asked for stands in the form again."""
    browser.open_link()
    page = browser.page(f"history?{urlencode(asked)}")
    assert page.xpath("//table//td[1]/a/text()") == found
    assert page.xpath("//input[@name='q']/@value") == [asked.get("q", "")]


def test_charts_lead_to_the_jobs(browser: Browser) -> None:
    browser.open_link()
    linked = set(browser.page("chart?since=all").xpath("//*[name()='svg']//a/@href"))
    assert linked == {f"{browser.access.base}jobs/{n}" for n in (1, 2)}
    assert browser.page("chart").xpath("//*[name()='svg']") == []


def test_pages_can_be_read_by_all(browser: Browser) -> None:
    """One heading of the first level, none left out below; fields have labels, tables headings, charts a name."""
    browser.open_link()
    for path in ("", "jobs/2", "history", "chart?since=all", "jobs/77"):
        assert browser.ask(browser.access.base + path).status in {200, 404}
        page = html.fromstring(browser.content)
        levels = [int(one.tag[1]) for one in page.xpath("//h1|//h2|//h3|//h4")]
        assert levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        assert page.get("lang") == "en"
        assert page.xpath("//input[not(@type='hidden')][not(ancestor::label)] | //select[not(ancestor::label)]") == []
        assert page.xpath("//table[not(thead/tr/th[@scope='col'])]") == []
        assert page.xpath("//svg[not(@aria-label) and not(@aria-hidden)]") == []
        names = page.xpath("//*[@role='region']/@aria-label")
        assert len(set(names)) == len(names)
        assert len(set(page.xpath("//@id"))) == len(page.xpath("//@id"))
        assert len(page.xpath("//main")) == len(page.xpath("//title[parent::head]")) == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_on_every_page(tmp_path: Path, name: str) -> None:
    """Of a job, a component and a reason; in the address of the output, too."""
    job = replace(failed(ran(1, component("x", "a", 1)), name), name=name, explanation=name)
    keep_reports(tmp_path, [job])
    with served(tmp_path) as browser:
        browser.open_link()
        for path in ("", "jobs/1", "history", "chart?since=all"):
            page = browser.page(path)
            assert page.xpath("//script/@src | //img") == [f"{browser.access.base}live.js"]
            assert "\u202e" not in browser.content
            assert page.xpath("//bdi | //h1") != []


# -- Actions


def test_nothing_can_be_done_unless_that_is_allowed(browser: Browser) -> None:
    """Also with everything that a form would bring along."""
    browser.open_link()
    own = f"http://127.0.0.1:{browser.port}"
    asked = {"method": "POST", "body": urlencode({"proof": browser.access.proof})}
    assert browser.ask(f"{browser.access.base}jobs/1/cancel", **asked, Origin=own).status == 403
    assert "--allow-actions" in browser.content
    assert browser.ask(browser.access.base, **asked, Origin=own).status == 405


def test_a_form_must_be_from_a_page_of_ours(tmp_path: Path) -> None:
    """It brings a proof along, the browser says from which page it comes, and it is not large."""
    keep_reports(tmp_path, [ran(1, component("x", "a", 1))])
    with served(tmp_path, actions=True) as browser:
        browser.open_link()
        own = f"http://127.0.0.1:{browser.port}"
        path, proof = f"{browser.access.base}jobs/1/cancel", urlencode({"proof": browser.access.proof})
        assert browser.ask(path, method="POST", body=proof).status == 403
        assert browser.ask(path, method="POST", body=proof, Origin="http://127.0.0.1:1").status == 403
        assert browser.ask(path, method="POST", body="proof=x", Origin=own).status == 403
        assert browser.ask(path, method="POST", body=proof + "&" + "x" * 5000, Origin=own).status == 413
        assert browser.ask(path, Origin=own).status == 405
        # All is well with this one, and there is no service that could do it.
        assert browser.ask(path, method="POST", body=proof, Origin=own).status == 503
