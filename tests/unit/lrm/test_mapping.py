# SPDX-License-Identifier: Apache-2.0
"""Keys of a slot that a cluster can express: natively, and as its site file maps them to arguments."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from koala_adapter.errors import LrmRejectedError
from koala_adapter.lrm.contract import Capabilities, Directives, Submission, expressible
from koala_adapter.lrm.mapping import MAP_KEYS, arguments_of, braces_problem, divide, sample
from koala_adapter.model import BatchKey
from koala_adapter.slots import PLAIN, SLOT_KEYS, Slot

PLACEHOLDERS = Submission(key=BatchKey("koala-1"), count=2, script="#!/bin/sh\n", walltime=60)
NOTHING: frozenset[str] = frozenset()


def site(**mapped: str) -> Directives:
    """Return the directives of a site that maps these keys."""
    return Directives(map=tuple((key, arguments_of(text)) for key, text in mapped.items()))


def test_native_and_mapped_keys_are_expressible() -> None:
    can = expressible(Capabilities(slots=frozenset({"threads"})), site(gpus="-l gpu={n}", memory="-l mem_free={mib}M"))
    assert can == {"threads", "gpus"}
    assert Slot(threads=2, gpus=1, qos="high").beyond(can) == ("qos",)


def test_all_keys_of_a_slot_can_be_mapped_but_directives() -> None:
    assert set(MAP_KEYS) == {*SLOT_KEYS, "memory"} - {"directives"}


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("-l gpu={n}", ("-l gpu={n}",)),
        ("-pe smp {n} -R y", ("-pe smp {n}", "-R y")),
        ("--gres=gpu:{n}", ("--gres=gpu:{n}",)),
        (":ngpus={n} -W x=1", (":ngpus={n}", "-W x=1")),
        ("--comment='two words {n}'", ("--comment='two words {n}'",)),
    ],
)
def test_a_value_is_divided_into_arguments(text: str, arguments: tuple[str, ...]) -> None:
    assert arguments_of(text) == arguments


@pytest.mark.parametrize("text", ["", "  ", "gpu={n}", "-l 'gpu={n}", "-l gpu={n}\n-V", '-l m="{mib}'])
def test_what_is_no_list_of_arguments_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="arguments that begin with -"):
        arguments_of(text)


@pytest.mark.parametrize(
    ("key", "text", "right"),
    [
        ("gpus", "-l gpu={n}", True),
        ("gpus", "-l gpu={kind}", False),
        ("gpus", "-l gpu=1", False),
        ("gpus", "-l gpu={n}{", False),
        ("gpus", "-l gpu={n} -l m={kind}", False),
        ("gpu_kind", "-l gpu={n},model={kind}", True),
        ("gpu_kind", "-l gpu={n}", False),
        ("exclusive", "-l exclusive=true", True),
        ("exclusive", "-l exclusive={n}", False),
        ("licenses", "-l {name}={n}", True),
        ("licenses", "-l {name}", True),
    ],
)
def test_braces_of_a_key(key: str, text: str, *, right: bool) -> None:
    assert (braces_problem(key, text) == "") is right


@pytest.mark.parametrize(
    ("slot", "mapped", "arguments"),
    [
        (Slot(threads=4), {"threads": "-pe smp {n} -R y"}, ("-pe smp 4", "-R y")),
        (Slot(gpus=2), {"gpus": "-l gpu={n}"}, ("-l gpu=2",)),
        (Slot(gpus=2, gpu_kind="a100"), {"gpus": "-l g={n}", "gpu_kind": "-l g_{kind}={n}"}, ("-l g_a100=2",)),
        (Slot(exclusive=True), {"exclusive": "-l exclusive=true"}, ("-l exclusive=true",)),
        (Slot(scratch_mib=9), {"scratch": "-l tmp={mib}M"}, ("-l tmp=9M",)),
        (Slot(features=("ib", "avx")), {"features": "-l {name}"}, ("-l ib", "-l avx")),
        (Slot(licenses=(("a", 2), ("b", 1))), {"licenses": "-l {name}={n}"}, ("-l a=2", "-l b=1")),
        (Slot(account="phys"), {"account": "-P {name}"}, ("-P phys",)),
        (Slot(qos="high"), {"qos": "-l {name}=1"}, ("-l high=1",)),
    ],
)
def test_mapped_keys_become_arguments(slot: Slot, mapped: dict[str, str], arguments: tuple[str, ...]) -> None:
    divided = divide(replace(PLACEHOLDERS, slot=slot), NOTHING, site(**mapped), system="Toy")
    assert divided.directives.add == arguments
    assert divided.rest == PLACEHOLDERS


def test_order_is_site_then_map_then_slot() -> None:
    directives = replace(site(memory="-l mem={mib}M"), add=("-site",))
    slot = Slot(directives=("-own",))
    divided = divide(
        replace(PLACEHOLDERS, memory_mib=5, slot=slot), frozenset({"directives"}), directives, system="Toy"
    )
    assert divided.directives.add == ("-site", "-l mem=5M", "-own")
    assert divided.rest == PLACEHOLDERS
    assert divided.mapped == {"memory"}


def test_native_keys_stay_in_the_rest() -> None:
    slot = Slot(threads=2, gpus=1, gpu_kind="a100")
    native = frozenset({"threads", "gpus", "gpu_kind"})
    divided = divide(replace(PLACEHOLDERS, slot=slot), native, site(gpus="-l gpu={n}"), system="Toy")
    assert divided.rest.slot == slot, "gpus are mapped only for slots that name no kind"
    assert divide(replace(PLACEHOLDERS, slot=slot), native, Directives(), system="Toy").rest.slot == slot


@pytest.mark.parametrize(
    ("slot", "named", "hint"),
    [
        (Slot(threads=2, qos="x"), "threads, qos", r"\[clusters.map\].*threads and qos"),
        (Slot(directives=("-x",)), "directives", "leave it out"),
    ],
)
def test_what_nothing_expresses_is_refused_by_name(slot: Slot, named: str, hint: str) -> None:
    with pytest.raises(LrmRejectedError, match=f"Toy cannot be asked for {named} ") as caught:
        divide(replace(PLACEHOLDERS, slot=slot), NOTHING, Directives(), system="Toy")
    assert re.search(hint, caught.value.hint)


@pytest.mark.parametrize(
    "slot",
    [
        Slot(account="a b"),
        Slot(account="-P"),
        Slot(features=("a,b=1",)),
        Slot(features=("ok", "a&b")),
        Slot(licenses=(("x;y", 1),)),
        Slot(gpus=1, gpu_kind="a'b"),
        Slot(qos="{name}"),
    ],
)
def test_values_that_are_no_word_are_refused(slot: Slot) -> None:
    with pytest.raises(LrmRejectedError, match="cannot be asked for"):
        divide(replace(PLACEHOLDERS, slot=slot), frozenset(SLOT_KEYS), Directives(), system="Toy")


def test_plain_submissions_are_unchanged() -> None:
    divided = divide(PLACEHOLDERS, NOTHING, site(gpus="-l gpu={n}"), system="Toy")
    assert (divided.rest, divided.directives.add, divided.mapped) == (PLACEHOLDERS, (), frozenset())
    assert divided.rest.slot == PLAIN


def test_samples_have_no_braces() -> None:
    assert sample("-l gpu_{kind}={n}") == "-l gpu_kind=1"
