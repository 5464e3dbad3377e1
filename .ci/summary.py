# SPDX-License-Identifier: Apache-2.0
"""Closes `make test`: one line for each report of pytest, then each test without a pass, with the reason; the slowest.

Stands apart from pytest because several runs of it, each in an environment of its own, make up the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

LONGEST_REASON = 160
SLOWEST = 10


def first_line(text: str) -> str:
    """Return the first line of `text`, cut to what fits a terminal."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


def exceptional(report: ET.Element) -> list[str]:
    """Return a line for each test case of a JUnit report that did not run to a pass."""
    lines = []
    for case in report.iter("testcase"):
        for outcome in case:
            if outcome.tag in {"failure", "error", "skipped"}:
                name = f"{case.get('classname', '')}::{case.get('name', '')}"
                lines.append(f"  {outcome.tag} {name}: {first_line(outcome.get('message', ''))}")
    return lines


def counts(report: ET.Element) -> str:
    """Return how many tests of a JUnit report passed, failed and were skipped, and the seconds they took."""
    suites = list(report.iter("testsuite"))
    keys = ("tests", "failures", "errors", "skipped")
    total, failures, errors, skipped = (sum(int(suite.get(key, "0")) for suite in suites) for key in keys)
    seconds = sum(float(suite.get("time", "0")) for suite in suites)
    failed = failures + errors
    return f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped in {seconds:.0f} s"


def durations(report: ET.Element) -> list[tuple[float, str]]:
    """Return the seconds that each test case of a JUnit report took, and its name."""
    return [
        (float(case.get("time", "0")), f"{case.get('classname', '')}::{case.get('name', '')}")
        for case in report.iter("testcase")
    ]


def main(directory: Path) -> None:
    """Print the summary of all reports in `directory`."""
    paths = sorted(directory.glob("*.xml"))
    print("summary of the tests:" if paths else "summary of the tests: none ran")
    taken: list[tuple[float, str]] = []
    for path in paths:
        report = ET.parse(path).getroot()
        taken += durations(report)
        print(f"{path.stem}: {counts(report)}")
        for line in exceptional(report):
            print(line)
    slowest = sorted(taken, reverse=True)[:SLOWEST]
    if slowest:
        print("slowest:")
    for seconds, name in slowest:
        print(f"  {seconds:.0f} s {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
