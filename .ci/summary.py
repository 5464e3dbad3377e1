# SPDX-License-Identifier: Apache-2.0
"""Closes `make test`: what was skipped, the slowest, what failed and why; last the counts, and the names of failures.

The end is what is read first, and often all that is kept of a log.

Stands apart from pytest because several runs of it, each in an environment of its own, make up the tests.
"""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

LONGEST_REASON = 160
SLOWEST = 10
LAST_LINES = 40
"""Lines of a failed test case's output that are shown: the end says what went wrong."""


def first_line(text: str) -> str:
    """Return the first line of `text`, cut to what fits a terminal."""
    line = text.strip().partition("\n")[0]
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 1] + "…"


def failures(report: ET.Element) -> list[str]:
    """Return the name of each test case of a JUnit report that failed, with the end of what it left to be read."""
    lines = []
    for case in report.iter("testcase"):
        for outcome in case:
            if outcome.tag in {"failure", "error"}:
                lines.append(f"  {outcome.tag} {name_of(case)}: {first_line(outcome.get('message', ''))}")
                lines += [f"    {line}" for line in (outcome.text or "").rstrip().splitlines()[-LAST_LINES:]]
    return lines


def skips(report: ET.Element) -> list[str]:
    """Return a line for each reason for which test cases of a JUnit report were skipped: how many, and the first."""
    names: dict[str, list[str]] = {}
    for case in report.iter("testcase"):
        for outcome in case.iter("skipped"):
            names.setdefault(first_line(outcome.get("message", "")), []).append(name_of(case))
    return [
        f"  skipped {len(of)}: {reason} ({of[0]}{', …' if len(of) > 1 else ''})" for reason, of in sorted(names.items())
    ]


def name_of(case: ET.Element) -> str:
    """Return the name of a test case, with its module."""
    return f"{case.get('classname', '')}::{case.get('name', '')}"


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
    return [(float(case.get("time", "0")), name_of(case)) for case in report.iter("testcase")]


def failed_names(report: ET.Element) -> list[str]:
    """Return the name of each test case of a JUnit report that failed."""
    return [
        name_of(case)
        for case in report.iter("testcase")
        if any(outcome.tag in {"failure", "error"} for outcome in case)
    ]


def main(directory: Path) -> None:
    """Print the summary of all reports in `directory`."""
    paths = sorted(directory.glob("*.xml"))
    reports = {path.stem: ET.parse(path).getroot() for path in paths}
    slowest = sorted((one for report in reports.values() for one in durations(report)), reverse=True)[:SLOWEST]
    for line in [line for report in reports.values() for line in skips(report)]:
        print(line)
    if slowest:
        print("slowest:")
    for seconds, name in slowest:
        print(f"  {seconds:.0f} s {name}")
    for line in [line for report in reports.values() for line in failures(report)]:
        print(line)
    print("summary of the tests:" if paths else "summary of the tests: none ran")
    for part, report in reports.items():
        print(f"{part}: {counts(report)}")
    for part, report in reports.items():
        for name in failed_names(report):
            print(f"FAILED in {part}: {name}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
