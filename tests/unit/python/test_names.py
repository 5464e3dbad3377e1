# SPDX-License-Identifier: Apache-2.0
"""What the package hands on: every name that it promises, imported when it is asked for and not before."""

from __future__ import annotations

import os

import pytest

import koala_adapter as koala
from tests.imported import imported_packages

PROMISED = {
    "ClusterReport",
    "Component",
    "ComponentReport",
    "ConfigurationError",
    "Executor",
    "Job",
    "JobFailedError",
    "JobHandle",
    "JobNotFoundError",
    "JobRefusedError",
    "JobReport",
    "JobResult",
    "JobState",
    "JobTimeoutError",
    "KoalaError",
    "ServiceUnavailableError",
    "Site",
    "aio",
    "clusters",
    "job",
    "jobs",
    "local_site",
    "run",
    "submit",
}
"""Names that programs rely on: one that goes away breaks them."""


def test_the_names_are_the_promised_ones() -> None:
    """Those that are listed, and all of them are there."""
    assert set(koala.__all__) == PROMISED
    assert set(dir(koala)) >= PROMISED
    assert [name for name in koala.__all__ if getattr(koala, name).__name__.rpartition(".")[2] != name] == []


def test_a_name_that_is_not_there_is_said_to_be_none() -> None:
    """As of any module."""
    with pytest.raises(AttributeError, match="has no attribute 'Jobs'"):
        _ = koala.Jobs


@pytest.mark.parametrize(
    ("program", "packages"),
    [
        ("import koala_adapter", {"koala_adapter"}),
        ("from koala_adapter import Job, Component, Site, JobHandle, submit, KoalaError", {"koala_adapter"}),
        ("from koala_adapter import aio", {"koala_adapter", "anyio"}),
    ],
)
def test_importing_waits_for_little(program: str, packages: set[str]) -> None:
    """Site files, and whatever a service is made of, are imported with the first job."""
    assert imported_packages(["-c", program], os.environ) - {"sniffio", "idna", "typing_extensions"} == packages


def test_importing_the_package_imports_nothing_else() -> None:
    """Not even a module of its own."""
    program = "import sys, koala_adapter; assert [m for m in sys.modules if m.startswith('koala_adapter.')] == []"
    assert imported_packages(["-c", program], os.environ) == {"koala_adapter"}
