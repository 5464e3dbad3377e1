# SPDX-License-Identifier: Apache-2.0
"""Commands about jobs: ``status``, ``history``, ``cancel``, ``resize``, ``explain``, ``clusters`` and ``metrics``.

``cancel`` and ``resize`` change a job. Without a service, those that only ask read the journal and say so. What a
service counts (``metrics``) is in no journal: it is asked of a running one.
"""

from __future__ import annotations

import re
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koala_adapter import cli
from koala_adapter.api.client import Client
from koala_adapter.cli.listing import NOW_COLUMNS, PAST_COLUMNS, Listing, listing_options, write_csv
from koala_adapter.cli.session import Session, command_body, json_option, pass_session
from koala_adapter.config.locations import SiteFileState, locate_site_file
from koala_adapter.errors import ConfigurationError, JobNotFoundError, ServiceUnavailableError
from koala_adapter.report.selection import JobSelection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from koala_adapter.api.closedjournal import ClosedJournal
    from koala_adapter.api.offline import JournalView
    from koala_adapter.report.sitevalues import ClusterReport
    from koala_adapter.report.values import JobReport

PATIENCE = 30.0
"""Seconds to wait for a service that went away to come back."""


def job_information(session: Session) -> Client | ClosedJournal | JournalView:
    """Return the running service, or else its journal, after a remark that no service runs.

    Raises ConfigurationError if the service runs on another site file than the command is given.
    """
    session.check_site_option()
    source = session.here.information()
    if isinstance(source, Client):
        return source
    left = ", ".join(source.unfinished)
    session.remark("no service runs; this is what its journal says")
    if left:
        session.remark(
            f"unfinished: {left}; `koala serve`, or the next `koala run` or `koala submit`, goes on with them"
        )
    return source


@click.command()
@click.argument("job_id", metavar="[ID]", required=False)
@listing_options
@click.option("--watch", "-w", is_flag=True, help="Show it anew at each change: one job to its end, all until Ctrl-C.")
@pass_session
@command_body
def status(session: Session, job_id: str | None, listing: Listing, watch: bool) -> None:
    r"""Show the jobs, or one job in detail.

    Without a service it shows what the journal says, and says so. `koala history` shows the dates of jobs.

    \b
    Examples:
      koala status 12
      koala status --state running --cluster alpha
      koala status --watch
    """
    if (job_id is not None or watch) and not listing.is_plain:
        raise click.UsageError(
            "neither beside an ID nor beside --watch can it be said which jobs and columns are shown"
        )
    if watch:
        _watch(session, job_id, listing)
        return
    source = job_information(session)
    for defect in source.defects():
        session.remark(defect)
    if job_id is None:
        if source is session.client and not (listing.as_json or listing.as_csv):
            _tell_site_file(session)
        reports = source.jobs(listing.limit) if listing.takes_all else _selected(session, source, listing)
        _show_jobs(session, reports, listing, NOW_COLUMNS)
        return
    report = source.job(job_id)
    if listing.as_json:
        session.print_json(asdict(report))
    else:
        session.console.print(*cli.display.job_lines(report), sep="\n", soft_wrap=True)


@click.command()
@listing_options
@pass_session
@command_body
def history(session: Session, listing: Listing) -> None:
    r"""Show all jobs that are kept, with their dates.

    In order of submission, the latest ones; they are kept until `koala clean` removes them. TIME is a date
    (2026-11-26), a time (14:30), both (2026-11-26T14:30), a span before now (90m, 2h, 3d), today or yesterday; --until
    a date means its end.

    \b
    Examples:
      koala history --since yesterday --failed
      koala history --since 2026-11-01 --until 2026-11-30 --name 'train-*' --csv > november.csv
      koala history --since 8h --columns id,name,hosts,why
    """
    _show_jobs(session, _selected(session, job_information(session), listing), listing, PAST_COLUMNS)


def _selected(session: Session, source: Client | ClosedJournal | JournalView, listing: Listing) -> list[JobReport]:
    """Return the latest selected jobs; remark if more jobs match than are shown."""
    found = source.jobs(listing.limit + 1, listing.selection)
    if len(found) > listing.limit:
        session.remark(f"the latest {listing.limit} of more jobs; --limit shows more")
    return found[-listing.limit :]


def _show_jobs(session: Session, reports: list[JobReport], listing: Listing, columns: Sequence[str]) -> None:
    """Print jobs as table, JSON or CSV; ``columns``: unless options name others."""
    columns = listing.columns or columns
    if listing.as_json:
        session.print_json([asdict(report) for report in reports])
    elif listing.as_csv:
        write_csv(reports, columns, sys.stdout)
    else:
        session.console.print(cli.display.jobs_table(reports, columns) if reports else "no jobs")


def _tell_site_file(session: Session) -> None:
    """Remark the site file of the service, and whether it has changed or differs from the one asked for."""
    in_force = session.client.site_in_force()
    if in_force is None:
        return
    changed = in_force.digest != SiteFileState.of(Path(in_force.path)).digest
    since = ", which has changed since: `koala serve --reload` takes it up" if changed else ""
    session.remark(f"the service runs on {in_force.path}{since}")
    own = locate_site_file(session.site_option)
    if own is not None and not in_force.is_file_of(SiteFileState.of(own)):
        session.remark(f"and not on {own}: `koala serve --stop` ends it")


def _watch(session: Session, job_id: str | None, listing: Listing) -> None:
    if listing.as_json:
        raise click.UsageError("--json prints one document and --watch goes on: use one of them")
    session.check_site_option()
    if job_id is None:
        cli.following.watch_all(session, listing.limit)
    else:
        cli.following.watch_one(session, job_id)


@click.command()
@click.argument("words", metavar="[ID | FIRST-LAST] ...", nargs=-1)
@click.option(
    "--name", metavar="PATTERN", default="", help="Only jobs of this name, with *, ? and [...] as in a shell."
)
@click.option("--no-wait", is_flag=True, help="Do not wait until its placeholders are gone.")
@json_option
@pass_session
@command_body
def cancel(session: Session, words: tuple[str, ...], name: str, no_wait: bool, as_json: bool) -> None:
    r"""End a job, or several, and everything of it in all batch systems.

    Returns when nothing of it is left there. A job that has ended already is left as it is. FIRST-LAST are all jobs
    with these ids, and --name without an ID all jobs of that name, that have not ended.

    \b
    Examples:
      koala cancel 12
      koala cancel 3 5-9
      koala cancel --name 'train-*'
    """
    if not words and not name:
        raise click.UsageError("name jobs by ID, FIRST-LAST or --name")
    session.check_site_option()
    single = len(words) == 1 and not name and _IDS.fullmatch(words[0]) is None
    chosen, left, unknown = (words, {}, None) if single else _to_cancel(session, words, name)
    reports = [session.client.cancel(job_id) for job_id in chosen]
    if not no_wait and not all(report.over for report in reports):
        with session.progress.status("cancelling") as display:
            reports = [report if report.over else _ended(session, report, display.update) for report in reports]
    if as_json:
        several = {"cancelled": list(map(asdict, reports)), "left": left}
        session.print_json(asdict(reports[0]) if single else several)
    else:
        for report in reports:
            ending = f", {report.placeholders_left} placeholders still ending" if report.placeholders_left else ""
            session.console.print(f"job {report.id}: {report.state.value}{ending}")
        for job_id, why in left.items():
            session.console.print(f"job {job_id}: not cancelled: {why}", markup=False, soft_wrap=True)
    if unknown is not None:
        sys.exit(unknown.exit_code)


_IDS = re.compile(r"([0-9]+)-([0-9]+)")


def _to_cancel(
    session: Session, words: Sequence[str], name: str
) -> tuple[Sequence[str], dict[str, str], JobNotFoundError | None]:
    """Return the ids of unfinished jobs chosen by ids and name, and why others are not cancelled.

    Also returns the first error about an id that there is not. Raises JobNotFoundError when nothing is chosen.
    """
    unfinished = {report.id: report for report in session.client.unfinished(JobSelection(name=name))}
    left: dict[str, str] = {}
    unknown: JobNotFoundError | None = None
    chosen: list[str] = [] if words else list(unfinished)
    for word in words:
        if found := _IDS.fullmatch(word):
            numbers = range(int(found[1]), int(found[2]) + 1)
            chosen += [job_id for job_id in unfinished if job_id.isdecimal() and int(job_id) in numbers]
        elif word in unfinished:
            chosen.append(word)
        else:
            try:
                report = session.client.job(word)
                ended = f"it had ended already: {report.state.value}"
                left[word] = f"its name is {report.name}" if report.outcome is None else ended
            except JobNotFoundError as error:
                left[word], unknown = error.message, unknown or error
    if not chosen and not left:
        raise JobNotFoundError(f"no job that has not ended is meant by {' '.join((*words, name)).strip()}")
    return list(dict.fromkeys(chosen)), left, unknown


def _ended(session: Session, report: JobReport, tell: Callable[[str], None]) -> JobReport:
    """Wait until a cancelled job is over and return its report."""
    latest = report
    for latest in _until_over(session, report.id):
        tell(f"cancelling job {latest.id}: {latest.placeholders_left} placeholders left")
    return latest


@click.command()
@click.argument("job_id", metavar="ID")
@click.argument("processors", type=click.IntRange(min=1))
@click.option("--component", metavar="NAME", default="", help="Which one, if several can change their size.")
@json_option
@pass_session
@command_body
def resize(session: Session, job_id: str, processors: int, component: str, as_json: bool) -> None:
    r"""Bring a running malleable job to another size.

    It gives up at once what it has beyond that, gets as many processors as can be had, and no more from then on. The
    bounds of its job file hold. `koala status ID` shows how it gets on.

    \b
    Example:
      koala resize 12 8
    """
    session.check_site_option()
    report = session.client.resize(job_id, processors, component)
    if as_json:
        session.print_json(asdict(report))
    else:
        session.console.print(report.explanation, markup=False, soft_wrap=True)


def _until_over(session: Session, job_id: str) -> Iterator[JobReport]:
    """Yield the reports of a job until it is over.

    The service may be that of the very `koala run` that ends with the job, and be gone before it has told us: then the
    journal says it.
    """
    try:
        yield from session.client.watch(job_id)
    except ServiceUnavailableError:
        report = session.here.recorded().job(job_id)
        if report.over:
            yield report
        else:
            yield from session.client.follow(job_id, patience=PATIENCE, on_lost=on_lost_service(session))


def on_lost_service(session: Session) -> Callable[[], None]:
    """Return the error that says that the service went away."""
    text = f"the service went away; waiting up to {PATIENCE:.0f} s for it to come back (`koala serve` starts it)"
    return lambda: session.remark(text)


@click.command()
@click.argument("job_id", metavar="ID")
@click.option("--cluster", "-c", help="The id is that of a job of this cluster, as its batch system writes it.")
@json_option
@pass_session
@command_body
def explain(session: Session, job_id: str, cluster: str | None, as_json: bool) -> None:
    r"""Say why a job waits, what it holds, and what would let it start.

    A job of a cluster's own batch system is asked for as CLUSTER:ID; the cluster's `koala schedule` answers, your own
    or that at the cluster's ask_socket in the site file.

    \b
    Examples:
      koala explain 12
      koala explain a:4711
    """
    named, colon, local_id = job_id.partition(":")
    if cluster is not None or colon:
        cli.schedule.explain_local(session, cluster or named, local_id if colon else job_id, as_json=as_json)
        return
    report = job_information(session).job(job_id)
    if as_json:
        session.print_json({"id": report.id, "state": report.state.value, "explanation": report.explanation})
    else:
        # One line for programs, whole words for people.
        used = f" It {line}." if (line := cli.display.usage_line(report)) else ""
        session.console.print(report.explanation + used, markup=False, soft_wrap=not session.console.is_terminal)


@click.command()
@click.option("--network", is_flag=True, help="Show how quickly files get to each cluster, and how koala knows.")
@click.option("--measure", is_flag=True, help="Measure that now, to other sites and between them; implies --network.")
@json_option
@pass_session
@command_body
def clusters(session: Session, network: bool, measure: bool, as_json: bool) -> None:
    r"""Show the clusters: what is idle, what we hold, how often we ask.

    Asks the clusters themselves when no service runs.

    \b
    Examples:
      koala clusters --json
      koala clusters --network
      koala clusters --measure
    """
    reports = measured_clusters(session) if measure else cluster_reports(session)
    if as_json:
        session.print_json([asdict(report) for report in reports])
    elif network or measure:
        session.console.print(cli.display.network_table(reports, time.time()))
        if any(report.network.routes for report in reports):
            session.console.print(cli.display.routes_table(reports, time.time()))
    else:
        session.console.print(cli.display.clusters_table(reports, time.time()))
        for report in reports:
            if report.submission:
                session.console.print(f"{report.name}: placeholders are submitted {report.submission}", markup=False)


def measured_clusters(session: Session) -> list[ClusterReport]:
    """Have the service measure the network and return the clusters."""
    if not session.client.running():
        message = "only a running service measures the network"
        raise ServiceUnavailableError(message, hint="start one with `koala serve`; `koala check` needs none")
    with session.progress.status("measuring the network to other sites and between them"):
        return session.client.clusters(measure=True)


def cluster_reports(session: Session) -> list[ClusterReport]:
    """Return the clusters as the service knows them; without a service, ask the batch systems."""
    if session.client.running():
        return session.here.clusters()
    with session.progress.status("asking the clusters") as display:
        return session.here.clusters(tell=lambda names: display.update(f"asking {names}"))


# -- Command ``metrics`` -------------------------------------------------------------------------------------
# Prints what a service, a scheduler or a WIKI server counts.

LOCALHOST = "127.0.0.1"
LONGEST_ANSWER = 30.0
"""Seconds that an answer may take."""


@click.command()
@click.option(
    "--port",
    type=click.IntRange(1, 65_535),
    help="Read the metrics from this port of [metrics] listen (`--metrics-port`). Default: from the running service.",
)
@pass_session
@command_body
def metrics(session: Session, port: int | None) -> None:
    r"""Print what a service counts, in the form of OpenMetrics.

    Prometheus and others read the same from the port that [metrics] port or --metrics-port opens: see `koala docs
    metrics`. A dashboard for Grafana: `koala conf grafana.json`.

    \b
    Examples:
      koala metrics | grep placeholders
      koala metrics --port 9464
    """
    click.echo(session.client.metrics() if port is None else _fetched(_metrics_host(session), port), nl=False)


def _metrics_host(session: Session) -> str:
    """Return the address on which metrics are told by the site file, or this host's own where there is no such file."""
    try:
        listen = session.site.metrics.listen
    except ConfigurationError:
        return LOCALHOST
    return {"0.0.0.0": LOCALHOST, "::": "::1"}.get(listen, listen)  # noqa: S104 - asked for, not listened on


def _fetched(host: str, port: int) -> str:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection(host, port, timeout=LONGEST_ANSWER)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        text = response.read().decode("utf-8", "replace")
    except (OSError, HTTPException) as error:
        message = f"metrics cannot be read from port {port} of {host}: {getattr(error, 'strerror', None) or error}"
        hint = "start koala serve, schedule or wiki serve with --metrics-port"
        raise ServiceUnavailableError(message, hint=hint) from error
    finally:
        connection.close()
    if response.status != 200:  # noqa: PLR2004 - OK, in the words of HTTP
        raise ServiceUnavailableError(f"port {port} of {host} answers {response.status} {response.reason}")
    return text
