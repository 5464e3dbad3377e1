# SPDX-License-Identifier: Apache-2.0
"""Metrics as Prometheus reads them, and the dashboard over them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from anyio.abc import TaskGroup
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from koala_adapter.errors import LrmUnreachableError, ServiceRunningError
from koala_adapter.host import metrics as catalogue
from koala_adapter.host import metricsport as endpoint
from koala_adapter.host.exposition import openmetrics
from koala_adapter.host.metrics import MOST_SERIES, Kind, Meter, process_meter
from koala_adapter.host.metricsport import LONGEST_HEAD, MetricsEndpoint
from koala_adapter.lrm.commands import CommandRunner

# -- What is counted is what a reader of OpenMetrics finds, within bounds.


def read(meter: Meter) -> dict[str, dict[tuple[str, ...], float]]:
    """Return the samples of a meter by name and label values, as a reader of OpenMetrics finds them."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    families: Callable[[str], Iterator[Family]] = text_string_to_metric_families
    for family in families(openmetrics(meter).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


def test_counters_gauges_and_histograms_are_read_back() -> None:
    meter = Meter()
    meter.add(catalogue.JOB_STARTS)
    meter.add(catalogue.JOB_STARTS, amount=2)
    meter.read_with(lambda one: one.set(catalogue.JOBS, "running", value=4))
    for seconds in (0.5, 1.0, 2.0, 1e9, -3.0):
        meter.observe(catalogue.CLAIMING, "a", seconds=seconds)
    found = read(meter)
    assert found["koala_job_starts_total"] == {(): 3}
    assert found["koala_jobs"] == {("running",): 4}
    buckets = found["koala_claiming_seconds_bucket"]
    assert (buckets["a", "1.0"], buckets["a", "5.0"], buckets["a", "86400.0"], buckets["a", "+Inf"]) == (3, 4, 4, 5)
    assert found["koala_claiming_seconds_count"]["a",] == 5
    assert found["koala_claiming_seconds_sum"]["a",] == 1e9 + 3.5


def test_a_gauge_that_nobody_sets_any_more_is_gone() -> None:
    """A cluster that has left the site file is not told of for ever."""
    meter, clusters = Meter(), ["a", "b"]

    def source(one: Meter) -> None:
        for name in clusters:
            one.set(catalogue.CLUSTER_UP, name, value=1)

    meter.read_with(source)
    assert set(read(meter)["koala_cluster_up"]) == {("a",), ("b",)}
    clusters.pop()
    assert set(read(meter)["koala_cluster_up"]) == {("a",)}


def test_labels_are_bounded() -> None:
    """Whatever comes as a label, a metric has only so many series; the rest counts together."""
    meter = Meter()
    for number in range(MOST_SERIES + 50):
        meter.add(catalogue.JOB_ENDS, f"outcome {number}")
    found = read(meter)["koala_job_ends_total"]
    assert len(found) == MOST_SERIES + 1
    assert found["other",] == 50


def test_a_metric_is_used_as_what_it_is() -> None:
    with pytest.raises(TypeError, match="koala_jobs is a gauge"):
        Meter().add(catalogue.JOBS, "running")


def test_the_names_are_those_of_openmetrics() -> None:
    """No name is there twice; counters get their ending from the format; times are in seconds, and say so."""
    names = [one.name for one in catalogue.ALL]
    assert len(set(names)) == len(names)
    for one in catalogue.ALL:
        assert one.name.startswith("koala_")
        assert not one.name.endswith("_total")
        assert one.help.endswith(".")
        assert (one.kind is Kind.HISTOGRAM) == bool(one.bounds)
        assert one.kind is not Kind.HISTOGRAM or one.name.endswith("_seconds")


async def test_commands_are_counted_by_program_and_failure(tmp_path: Path) -> None:
    """The program without its directory, never its arguments; a status, and a program that is not there."""
    runner = CommandRunner(per_minute=600)
    meter = process_meter("serve")
    runner.count_in(meter, "a")
    await runner.run(["/bin/sh", "-c", "true secret"])
    await runner.run(["/bin/sh", "-c", "exit 3"])
    with pytest.raises(LrmUnreachableError):
        await runner.run([str(tmp_path / "squeue")])
    found = read(meter)
    assert found["koala_lrm_command_seconds_count"] == {("a", "sh"): 2, ("a", "squeue"): 1}
    assert found["koala_lrm_command_errors_total"] == {("a", "sh", "status"): 1, ("a", "squeue", "absent"): 1}
    assert found["koala_lrm_requests_total"]["a",] == 3
    assert found["koala_lrm_requests_last_minute"]["a",] == 3
    assert found["koala_lrm_requests_per_minute_bound"]["a",] == 600
    assert b"secret" not in openmetrics(meter)


async def test_requests_of_other_processes_are_in_the_last_minute(tmp_path: Path) -> None:
    """Two that share a window see each other's requests, as the bound does."""
    one, other = (CommandRunner(per_minute=600, shared=tmp_path / "w.requests") for _ in range(2))
    await other.admit()
    await other.admit()
    await one.admit()
    assert (one.window.total, one.window.recent()) == (1, 3)


def fetch(port: int, request: str = "GET", path: str = "/metrics") -> tuple[int, str, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(request, path)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read().decode()
    finally:
        connection.close()


async def served(tasks: TaskGroup, meter: Meter) -> int:
    """Serve a meter on a free port."""
    port: int = await tasks.start(MetricsEndpoint(meter, "127.0.0.1", 0).serve)
    return port


async def test_the_endpoint_tells_metrics_and_nothing_else() -> None:
    """A reader gets OpenMetrics; other paths and methods are refused."""
    async with anyio.create_task_group() as tasks:
        port = await served(tasks, process_meter("wiki"))
        status, kind, body = await anyio.to_thread.run_sync(fetch, port)
        assert (status, kind) == (200, "application/openmetrics-text; version=1.0.0; charset=utf-8")
        assert "\nkoala_start_time_seconds " in body
        assert body.endswith("# EOF\n")
        assert (await anyio.to_thread.run_sync(fetch, port, "HEAD"))[::2] == (200, "")
        assert (await anyio.to_thread.run_sync(fetch, port, "POST"))[0] == 405
        assert (await anyio.to_thread.run_sync(fetch, port, "GET", "/"))[0] == 404
        tasks.cancel_scope.cancel()


async def test_who_sends_rubbish_or_hangs_up_stops_nobody() -> None:
    """A request without end, bytes that are no request, and a connection that is dropped: the next reader is served."""
    async with anyio.create_task_group() as tasks:
        port = await served(tasks, process_meter("serve"))
        for sent in (b"x" * (2 * LONGEST_HEAD), b"\x00\xff\r\n\r\n", b"GET /met"):
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(sent)
        assert (await anyio.to_thread.run_sync(fetch, port))[0] == 200
        tasks.cancel_scope.cancel()


async def test_who_only_connects_keeps_no_reader_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has been there longest goes when others come."""
    monkeypatch.setattr(endpoint, "MOST_CONNECTIONS", 3)
    async with anyio.create_task_group() as tasks, AsyncExitStack() as idle:
        port = await served(tasks, process_meter("serve"))
        for _ in range(8):
            await idle.enter_async_context(await anyio.connect_tcp("127.0.0.1", port))
        assert (await anyio.to_thread.run_sync(fetch, port))[0] == 200
        tasks.cancel_scope.cancel()


async def test_a_port_that_is_taken_is_refused_with_the_way_out() -> None:
    async with anyio.create_task_group() as tasks:
        port = await served(tasks, Meter())
        with pytest.raises(ServiceRunningError, match=f"port {port}") as raised:
            await MetricsEndpoint(Meter(), "127.0.0.1", port).serve()
        assert "--metrics-port" in raised.value.hint
        tasks.cancel_scope.cancel()


# -- The dashboard asks for what koala tells, by the labels that it has.


DASHBOARD = json.loads((Path(__file__).parents[3] / "conf" / "grafana.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
SUFFIXES = {Kind.GAUGE: ("",), Kind.COUNTER: ("_total",), Kind.HISTOGRAM: ("_bucket", "_count", "_sum")}
SAMPLES = {one.name + suffix: one for one in catalogue.ALL for suffix in SUFFIXES[one.kind]}
SELECTOR = re.compile(r"(koala_\w+)\{([^}]*)\}")
GROUPING = re.compile(r"by \(([^)]*)\)")
SHOWN = re.compile(r"\{\{(\w+)\}\}")


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_names_a_metric_and_its_labels(query: str) -> None:
    """Also those by which it groups; ``instance`` is Prometheus' own, ``le`` that of buckets."""
    selectors = SELECTOR.findall(query)
    assert [name for name, _ in selectors] == re.findall(r"koala_\w+", query)
    for name, chosen in selectors:
        allowed = {*SAMPLES[name].labels, "instance", "le"}
        assert {part.split("=")[0] for part in chosen.split(",")} <= allowed
        assert {label.strip() for group in GROUPING.findall(query) for label in group.split(",")} <= allowed


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_a_legend_shows_labels_that_are_there(panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        grouped = GROUPING.search(target["expr"])
        (name, _), *_ = SELECTOR.findall(target["expr"])
        by = {part.strip() for part in grouped[1].split(",")} if grouped else {*SAMPLES[name].labels, "instance"}
        assert set(SHOWN.findall(target["legendFormat"])) <= by


def test_every_metric_is_on_the_dashboard() -> None:
    """All but who counts, since when: they are for choosing a process."""
    shown = {SAMPLES[name] for query in QUERIES for name in re.findall(r"koala_\w+", query)}
    assert set(catalogue.ALL) - shown == {catalogue.VERSION, catalogue.STARTED_AT}


def test_its_variables_are_labels() -> None:
    """What is chosen at the top is asked of metrics that have it."""
    asked = [one["query"]["query"] for one in DASHBOARD["templating"]["list"] if one["type"] == "query"]
    found = [re.fullmatch(r"label_values\((\w+), (\w+)\)", one) for one in asked]
    assert all(one and one[2] in {*SAMPLES[one[1]].labels, "instance"} for one in found)
