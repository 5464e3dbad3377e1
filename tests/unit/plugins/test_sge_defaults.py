# SPDX-License-Identifier: Apache-2.0
"""Files of defaults of Grid Engine's commands, which come in front of koala's own options."""

from __future__ import annotations

from pathlib import Path

import pytest

from koala_adapter.errors import LrmRejectedError, LrmUnavailableError
from koala_sge import SgeSettings
from koala_sge.defaults import check_defaults, groups_arrays, require_whole_listings
from koala_sge.heldjobs import list_held, list_jobs, parse_wishes
from koala_sge.listing import parse_jobs, parse_layouts

SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "sge819"


def settings_with(directory: Path, name: str, text: str) -> SgeSettings:
    """Return the settings of a cell with one file of defaults."""
    common = directory / "default" / "common"
    common.mkdir(parents=True)
    (common / name).write_text(text)
    return SgeSettings(root=directory)


@pytest.mark.parametrize("name", ["sge_qstat", "sge_qselect"])
@pytest.mark.parametrize("text", ["-q x", "# ours\n-ext -pe x", "-l arch=lx", "-U ann", "-j 1", "-qs d"])
def test_what_hides_jobs_is_refused(tmp_path: Path, name: str, text: str) -> None:
    """At start, and in `koala check`, with file and option."""
    settings = settings_with(tmp_path, name, text)
    with pytest.raises(LrmRejectedError, match=rf"{name} has -\w+, which hides"):
        require_whole_listings(settings, home=tmp_path)
    checked = check_defaults(settings, home=tmp_path)
    assert not checked.ok
    assert name in checked.found


@pytest.mark.parametrize("text", ["", "-s r", "-f -F -ext", "-u ann", "# -q x", "-g c"])
def test_what_is_overridden_or_read_is_not_refused(tmp_path: Path, text: str) -> None:
    """States, users and groupings are given in every command; fuller listings are read."""
    settings = settings_with(tmp_path, "sge_qstat", text)
    require_whole_listings(settings, home=tmp_path)
    assert check_defaults(settings, home=tmp_path).ok


def test_files_of_the_user_count(tmp_path: Path) -> None:
    """In the home directory."""
    (tmp_path / ".sge_qstat").write_text("-q all.q\n")
    with pytest.raises(LrmRejectedError, match=r"\.sge_qstat has -q"):
        require_whole_listings(SgeSettings(root=tmp_path), home=tmp_path)


def test_defaults_of_submissions(tmp_path: Path) -> None:
    """A start some day, or a wait for one at once, is told."""
    assert not check_defaults(settings_with(tmp_path, "sge_request", "-now y"), home=tmp_path).ok


def test_states_and_groupings_are_given(tmp_path: Path) -> None:
    """Tasks come singly only where a file of defaults has another grouping."""
    settings = settings_with(tmp_path, "sge_qstat", "-g c")
    assert groups_arrays(settings, home=tmp_path)
    assert not groups_arrays(SgeSettings(root=tmp_path / "other"), home=tmp_path)
    assert list_jobs()[1:] == ("-xml", "-r", "-s", "prs", "-u", "*")
    assert list_jobs(singly=True)[1:] == ("-xml", "-r", "-s", "prs", "-g", "d", "-u", "*")
    assert list_held("ann", "o", singly=True)[1:] == ("-xml", "-g", "d", "-u", "ann", "-s", "ho")


@pytest.mark.parametrize("name", ["qstat_g_c.xml", "qstat_g_c_two.xml"])
def test_a_listing_of_queues_is_not_no_jobs(name: str) -> None:
    """As with -g c in a file of defaults."""
    for parse in (parse_jobs, parse_layouts, parse_wishes):
        with pytest.raises(LrmUnavailableError, match="lists no jobs"):
            parse((SAMPLES / name).read_bytes())
    assert parse_jobs((SAMPLES / "qstat_empty.xml").read_bytes()) == ()


def test_the_enclosing_queue_instance_is_the_place_of_a_job() -> None:
    """As with -f or -F in a file of defaults."""
    listed = {str(job.id): job for job in parse_jobs((SAMPLES / "qstat_mixed_f.xml").read_bytes())}
    plain = {str(job.id): job for job in parse_jobs((SAMPLES / "qstat_mixed.xml").read_bytes())}
    assert (listed["3.1"].queue, listed["3.1"].nodes) == ("all.q", ("localhost",))
    assert {id_: (job.queue, job.nodes, job.layout) for id_, job in listed.items() if job.nodes} == {
        id_: (job.queue, job.nodes, job.layout) for id_, job in plain.items() if job.nodes
    }
