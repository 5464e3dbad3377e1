# SPDX-License-Identifier: Apache-2.0
"""What live services tell of themselves, read as Prometheus reads it."""

from __future__ import annotations

import json
import re
from http.client import HTTPConnection
from typing import TYPE_CHECKING

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import koala_adapter
from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.host import metrics as catalogue
from koala_adapter.host.sockets import free_port
from tests.json_shapes import deviations
from tests.local_koala import Koala, eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from tests.local_koala import Running

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


def told_port(process: Running) -> int:
    """Return the port on which a process says that it tells its metrics."""
    for line in process.stderr or ():
        found = re.search(r"metrics are told at http://127\.0\.0\.1:(\d+)/metrics", line)
        if found:
            return int(found[1])
    raise AssertionError("it says nothing of metrics")


def scrape(port: int) -> str:
    """Return what is told on a port."""
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and label values, in the order of the labels' names."""
    parse: Callable[[str], Iterator[Family]] = text_string_to_metric_families
    return {
        (one.name, *(one.labels[label] for label in sorted(one.labels))): one.value
        for family in parse(text)
        for one in family.samples
    }


def names(text: str) -> set[str]:
    """Return the names of the families that are told."""
    parse: Callable[[str], Iterator[Family]] = text_string_to_metric_families
    return {family.name for family in parse(text)}


def test_a_service_tells_what_became_of_a_job(koala: Koala) -> None:
    """Starts, ends, waits and requests are counted; `koala metrics` says the same; no job or user is named."""
    process = koala.start("serve", "--metrics-port", "0")
    port = told_port(process)
    koala.run("run", koala.job("true", name="innermost", processors=2))
    eventually(lambda: not koala.placeholders())
    text = scrape(port)
    found = samples(text)
    assert found["koala_info", "serve", koala_adapter.__version__] == 1
    assert found["koala_job_starts_total",] == 1
    assert found["koala_job_ends_total", "completed"] == 1
    assert found["koala_job_waiting_seconds_count",] == 1
    for cluster in ("alpha", "beta"):
        assert found["koala_placeholder_waiting_seconds_count", cluster] == 2
        assert found["koala_claiming_seconds_count", cluster] == 1
        assert found["koala_cluster_up", cluster] == 1
        assert found["koala_cluster_processors", cluster] == 4
        assert found["koala_lrm_command_seconds_count", cluster, "submit"] == 1
        assert found["koala_lrm_requests_total", cluster] > 0
        assert found["koala_lrm_requests_last_minute", cluster] > 0, "those of the test itself are in it, too"
        assert found["koala_lrm_requests_per_minute_bound", cluster] == 600
    assert names(text) <= {one.name for one in (*catalogue.COMMON, *catalogue.SERVE)}
    assert "innermost" not in text
    assert str(koala.directory) not in text
    by_command = samples(koala.inside("metrics").stdout)
    assert by_command["koala_job_starts_total",] == 1
    assert samples(koala.inside("metrics", "--port", str(port)).stdout)["koala_job_starts_total",] == 1
    refused = koala.inside("metrics", "--port", str(free_port()), check=246)
    assert "metrics cannot be read from port" in " ".join(refused.stderr.split())
    assert "--metrics-port" in refused.stderr


def test_a_shadow_tells_its_gains(koala: Koala) -> None:
    """And counts what it asks of the batch system."""
    koala.submit_foreign("other", 2, "alpha")
    port = told_port(koala.start("schedule", "--cluster", "alpha", "--shadow", "--metrics-port", "0"))
    eventually(lambda: ("koala_lrm_command_seconds_count", "alpha", "jobs") in samples(scrape(port)))
    text = scrape(port)
    found = samples(text)
    assert found["koala_shadow_jobs", "alpha", "earlier"] == 0
    assert ("koala_shadow_gain_seconds", "alpha") in found
    assert names(text) <= {one.name for one in (*catalogue.COMMON, *catalogue.SCHEDULE)}


def test_a_wiki_server_counts_requests_and_refusals(koala: Koala) -> None:
    """By verb, whoever asks."""
    key = koala.directory / "key"
    key.write_text("77\n")
    key.chmod(0o600)
    wiki = ("--port", str(free_port()), "--key-file", str(key))
    more = ("--dialect", "wiki2", "--reply-within", "120")
    server = koala.start("wiki", "serve", "--cluster", "alpha", *wiki, *more, "--metrics-port", "0")
    port = told_port(server)
    eventually(lambda: koala.inside("wiki", "ask", *wiki, "GETNODES", "0:ALL", check=None).exit_code == 0)
    listed = json.loads(koala.inside("wiki", "ask", *wiki, "--json", "GETNODES", "0:ALL").stdout)
    assert deviations(listed, shape_schema("wiki-reply")) == []
    koala.inside("wiki", "ask", *wiki, "STARTJOB", "99", "TASKLIST=n1", check=247)
    text = scrape(port)
    found = samples(text)
    assert found["koala_wiki_request_seconds_count", "GETNODES"] == 2
    assert found["koala_wiki_request_seconds_count", "STARTJOB"] == 1
    assert found["koala_wiki_refusals_total", "STARTJOB"] == 1
    assert names(text) <= {one.name for one in (*catalogue.COMMON, *catalogue.WIKI)}
    assert "77" not in re.sub(r"[\d.]+(e[+-]\d+)?\n", "\n", text)
