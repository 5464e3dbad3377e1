# SPDX-License-Identifier: Apache-2.0
"""The table of what differs between releases of Slurm."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from koala_slurm import releases
from koala_slurm.listing import parse_config
from koala_slurm.releases import DIFFERENCES, NEW_WORDS
from koala_slurm.words import JOB_STATES, NODE_FLAGS, NODE_STATES

if TYPE_CHECKING:
    from pathlib import Path


def test_the_table_is_in_order() -> None:
    """By release; each is one that is served, and none is there twice."""
    since = [one.since for one in DIFFERENCES]
    assert since == sorted(since)
    assert since[0] > releases.OLDEST
    assert since[-1] <= releases.NEWEST
    assert len({(one.since, one.subject) for one in DIFFERENCES}) == len(DIFFERENCES)
    assert all(one.before != one.then for one in DIFFERENCES)


def test_what_the_code_goes_by_is_in_the_table() -> None:
    """Each named difference of the module."""
    named = {one for one in vars(releases).values() if isinstance(one, releases.Difference)}
    assert named <= set(DIFFERENCES)


def test_new_words_have_a_meaning() -> None:
    """Each is a state that is known."""
    assert set(NEW_WORDS) <= {*JOB_STATES, *NODE_STATES, *NODE_FLAGS.values()}
    assert all(releases.OLDEST < since <= releases.NEWEST for since in NEW_WORDS.values())


@pytest.mark.parametrize(
    ("version", "by_node", "tells"),
    [("22.05.8", True, False), ("23.11.0", False, False), ("25.11.7", False, False), ("26.05.5", False, True)],
)
def test_a_controller_of_a_release(version: str, by_node: bool, tells: bool) -> None:  # noqa: FBT001 - parameters
    """What it can be asked for follows from the table."""
    config = parse_config(f"SLURM_VERSION           = {version}\n")
    assert (config.takes_cores_by_node, config.partitions_tell_more) == (by_node, tells)


@pytest.mark.parametrize(
    ("number", "controller", "fits"),
    [
        (38, (22, 5), True),
        (38, (23, 11), True),
        (38, (24, 5), False),
        (39, (24, 11), True),
        (38, (25, 11), False),
        (44, (25, 11), True),
        (45, (25, 11), False),
        (99, (25, 11), True),
        (38, (30, 5), True),
        (38, (), True),
    ],
)
def test_a_library_of_another_release(tmp_path: Path, number: int, controller: tuple[int, ...], *, fits: bool) -> None:
    """As far as slurmctld serves older ones; what is not known is tried."""
    library = tmp_path / "libdrmaa.so"
    library.write_bytes(b"\x7fELF..\0libc.so.6\0" + f"libslurm.so.{number}\0".encode() + b"drmaa_init\0")
    told = releases.misfit(library, controller)
    assert (told == "") == fits
    assert fits or f"libslurm of Slurm {releases.name_of(releases.LIBRARIES[number])}" in told


def test_a_library_that_tells_nothing(tmp_path: Path) -> None:
    """One that is not there, or names no libslurm, is tried."""
    (tmp_path / "libdrmaa.so").write_bytes(b"\x7fELF")
    assert releases.misfit(tmp_path / "libdrmaa.so", (25, 11)) == ""
    assert releases.misfit(tmp_path / "missing", (25, 11)) == ""


def test_name_of_a_release() -> None:
    """As Slurm writes it."""
    assert [releases.name_of(one) for one in (releases.OLDEST, (26, 5))] == ["20.11", "26.05"]
