# SPDX-License-Identifier: Apache-2.0
"""The dashboard asks for what koala tells, by the labels that it has."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from koala_adapter.host import metrics as catalogue

DASHBOARD = json.loads((Path(__file__).parents[3] / "conf" / "grafana.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [one for one in DASHBOARD["panels"] if one["type"] != "row"]
QUERIES = [target["expr"] for panel in PANELS for target in panel["targets"]]
SAMPLES = {name: one for one in catalogue.ALL for name in one.samples}
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
    """Not those that its query has summed up."""
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
