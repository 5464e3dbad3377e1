# SPDX-License-Identifier: Apache-2.0
"""Slots in the words of Grid Engine: options, shares of each processor, and what qconf tells of a cell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm import Submission
from koala_adapter.lrm.contract import Directives, ReservationRequest
from koala_adapter.model import BatchKey, NodeGpus
from koala_adapter.slots import PLAIN, Slot
from koala_sge.listing import parse_jobs, parse_left, parse_nodes
from koala_sge.settings import SgeSettings
from koala_sge.slots import (
    Complexes,
    environments_of_queues,
    gpu_complex,
    is_on_one_host,
    keep,
    kept,
    parse_complex_value,
    parse_complexes,
    shared,
)
from koala_sge.submission import native_options, parse_granted, parse_reservations, qrsub_command

PLACEHOLDERS = Submission(key=BatchKey("koala-1"), count=3, script="#!/bin/sh\n", walltime=60)
SETTINGS = SgeSettings(root=Path("/sge"))
SAMPLES = Path(__file__).parents[2] / "wire" / "samples" / "sge819"
COMPLEXES = """\
#name               shortcut   type      relop requestable consumable default  urgency
#--------------------------------------------------------------------------------------
exclusive           excl       BOOL      EXCL  YES         YES        0        1000
gpu                 gpu        INT       <=    YES         JOB        0        0
h_vmem              h_vmem     MEMORY    <=    YES         YES        0        0
ib                  ib         BOOL      ==    YES         NO         FALSE    0
matlab              mat        INT       <=    YES         YES        0        0
mem_free            mf         MEMORY    <=    YES         NO         0        0
rerun               re         BOOL      ==    NO          NO         0        0
# >#< starts a comment but comments are not saved across edits --------
"""
"""As `qconf -sc` of 8.1.9 shows a cell."""
CELL = parse_complexes(COMPLEXES, "smp")


def options(slot: Slot, *, memory_mib: int | None = None, cell: Complexes = CELL, **mapped: str) -> list[str]:
    """Return the options of a submission that a plain one does not have."""
    site = Directives(map=tuple((key, (text,)) for key, text in mapped.items()))
    asked = replace(PLACEHOLDERS, slot=slot, memory_mib=memory_mib)
    plain = native_options(SETTINGS, PLACEHOLDERS, cell, site)
    return [option for option in native_options(SETTINGS, asked, cell, site) if option not in plain]


def test_a_cell_is_read() -> None:
    assert (CELL.environment, CELL.exclusive, CELL.booleans) == ("smp", "exclusive", ("ib",))
    assert dict(CELL.consumables) == {"gpu": "JOB", "h_vmem": "YES", "matlab": "YES", "mat": "YES"}
    assert CELL.expressible >= {"threads", "exclusive", "features", "licenses"}
    assert CELL.known
    assert not Complexes().expressible & {"threads", "exclusive", "gpus"}


@pytest.mark.parametrize(
    ("slot", "expected"),
    [
        (PLAIN, []),
        (Slot(threads=4), ["-pe smp 4"]),
        (Slot(exclusive=True), ["-l exclusive=true"]),
        (Slot(features=("ib", "avx")), ["-l ib=true", "-l avx=true"]),
        (Slot(licenses=(("matlab", 2),)), ["-l matlab=2"]),
        (Slot(threads=2, licenses=(("matlab", 2),)), ["-pe smp 2", "-l matlab=1"]),
        (Slot(account="physics"), ["-A physics"]),
        (Slot(directives=("-P physics",)), ["-P physics"]),
    ],
)
def test_slots_become_options(slot: Slot, expected: list[str]) -> None:
    assert options(slot) == expected


def test_memory_of_several_processors_is_asked_for_in_shares() -> None:
    assert options(Slot(threads=3), memory_mib=1000) == ["-pe smp 3", "-l h_vmem=334M"]
    assert options(Slot(threads=3), memory_mib=1000, memory="-l mem_free={mib}M") == ["-pe smp 3", "-l mem_free=1000M"]


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("-l gpu=1", "-l gpu=1"),
        ("-l gpu=1,matlab=4", "-l gpu=1,matlab=2"),
        ("-l mat=2", "-l mat=1"),
        ("-l h_vmem=3G", "-l h_vmem=2G"),
        ("-l h_data=3M", "-l h_data=2M"),
        ("-l ib=true", "-l ib=true"),
        ("-l ib", "-l ib"),
        ("-P matlab=2", "-P matlab=2"),
    ],
)
def test_shares_of_two_processors(option: str, expected: str) -> None:
    assert shared(option, CELL, threads=2) == expected
    assert shared(option, CELL, threads=1) == option


def test_a_count_that_cannot_be_divided_is_refused() -> None:
    with pytest.raises(LrmRejectedError, match="takes matlab for each of 2 processors, and 1 cannot") as caught:
        options(Slot(threads=2, licenses=(("matlab", 1),)))
    assert caught.value.hint == "set consumable of matlab to JOB (qconf -mc)"


def test_mapped_keys() -> None:
    assert options(Slot(threads=2, gpus=1), gpus="-l gpu={n}") == ["-pe smp 2", "-l gpu=1"]
    assert options(Slot(threads=2), memory_mib=10, threads="-pe other {n}") == ["-l h_vmem=5M", "-pe other 2"]
    with pytest.raises(LrmRejectedError, match="gpus, gpu_kind") as caught:
        options(Slot(gpus=1, gpu_kind="a100"))
    assert "[clusters.map]" in caught.value.hint


def test_without_a_parallel_environment_threads_are_refused_with_the_remedy() -> None:
    with pytest.raises(LrmRejectedError, match="cannot be asked for 2 threads, processors of one host") as caught:
        options(Slot(threads=2), cell=replace(CELL, environment=""))
    assert "$pe_slots" in caught.value.hint
    assert "parallel_environment" in caught.value.hint


def test_environments_of_queues() -> None:
    queues = "qname a.q\npe_list make smp,[n1=mpi smp],\\\n [@big=wide]\nslots 4\nqname b.q\npe_list NONE\n"
    assert environments_of_queues(queues, None) == ("make", "smp", "mpi", "wide")
    assert environments_of_queues(queues, "b.q") == ()
    assert is_on_one_host("pe_name smp\nallocation_rule    $pe_slots\n")
    assert not is_on_one_host("pe_name mpi\nallocation_rule    $fill_up\n")


HOST = b"""<?xml version='1.0'?>
<qhost>
 <host name='n1'>
   <hostvalue name='mem_total'>23.5G</hostvalue>
   <resourcevalue name='ib' dominance='hf'>1.000000</resourcevalue>
   <resourcevalue name='avx' dominance='hf'>0.000000</resourcevalue>
   <resourcevalue name='slots' dominance='hc'>4.000000</resourcevalue>
 <queue name='all.q'>
   <queuevalue qname='all.q' name='qtype_string'>BIP</queuevalue>
   <queuevalue qname='all.q' name='slots'>4</queuevalue>
 </queue>
 </host>
</qhost>
"""
"""Of `qhost -xml -q -F slots,avx,ib` of 8.1.9."""


@pytest.mark.parametrize("by_queue", [False, True])
def test_features_of_a_host(*, by_queue: bool) -> None:
    (node,) = parse_nodes(HOST, by_queue=by_queue, features=("avx", "ib"))
    assert (node.features, node.untold) == (("ib",), ("gpus", "gpu_kind"))


def test_gpus_of_a_host() -> None:
    """What is left is in the listing, and how many there are in the settings of the host; a job has one of two."""
    listing = (SAMPLES / "qhost_q_F_gpu.xml").read_bytes()
    left = parse_left(listing, beside=("ib",))
    assert left == {"localhost": ("gpu", 1)}
    settings = (SAMPLES / "qconf_se.txt").read_text()
    assert [parse_complex_value(settings, name) for name in ("gpu", "pu", "load_avg", "ib")] == [2, None, None, None]
    gpus = {"localhost": NodeGpus(kind="", count=2, used=1)}
    (node,) = parse_nodes(listing, features=("ib",), gpus=gpus)
    assert (node.gpus, node.untold, node.features) == ((gpus["localhost"],), ("gpu_kind",), ("ib",))
    (unknown,) = parse_nodes(listing, gpus={"localhost": None}, untold=("features",))
    assert (unknown.gpus, unknown.untold) == ((), ("gpus", "gpu_kind", "features"))
    (without,) = parse_nodes(listing, by_queue=True, gpus={"other": gpus["localhost"]})
    assert (without.name, without.gpus, without.untold) == ("all.q@localhost", (), ("gpu_kind",))


def test_gpus_that_waiting_jobs_ask_for() -> None:
    listing = (SAMPLES / "qstat_r_gpu.xml").read_bytes()
    asked = {job.id: job.gpus_per_node for job in parse_jobs(listing, gpu="gpu")}
    assert asked == {"1": 0, "2.1": 1, "2.2": 1}
    assert {job.gpus_per_node for job in parse_jobs(listing)} == {0}


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (("-l gpu={n}",), "gpu"),
        (("-l cuda=TRUE,g={n}",), "g"),
        (("-l h=n1", "-l gpu={n}"), "gpu"),
        (("-l nosuch={n}",), ""),
        (("-l gpu=1",), ""),
    ],
)
def test_the_complex_of_gpus_is_that_of_the_map(arguments: tuple[str, ...], found: str) -> None:
    cell = replace(CELL, consumables={"gpu": "JOB", "g": "JOB"})
    assert gpu_complex(Directives(map=(("gpus", arguments),)), cell) == found
    assert gpu_complex(Directives(), cell) == ""


def test_a_cell_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "complexes.json"
    assert kept(path, SETTINGS) == Complexes()
    keep(path, CELL)
    assert kept(path, SETTINGS) == CELL
    own = SETTINGS.model_copy(update={"parallel_environment": "own"})
    assert kept(path, own) == replace(CELL, environment="own")


# -- Reservations


def test_reservations_are_asked_for_and_read() -> None:
    request = ReservationRequest(name="koala-x-r-1-1", count=2, starts_in=0.0, seconds=3700.0, queue="all.q")
    command = qrsub_command(request, "spread", 1_800_000_000.0)
    assert command == (
        *("qrsub", "-a", "202701150800.00", "-d", "1:1:40", "-pe", "spread", "2"),
        *("-N", "koala-x-r-1-1", "-q", "all.q"),
    )
    assert parse_granted("Your advance reservation 12 has been granted\n") == "12"
    assert parse_granted("advance_reservation: no suitable queues\n") == ""
    shown = "<ar_summary><id>12</id><name>koala-x-r-1-1</name><owner>ann</owner></ar_summary>"
    assert parse_reservations(shown, "ann") == {"koala-x-r-1-1": "12"}
    assert parse_reservations(shown, "bob") == {}
