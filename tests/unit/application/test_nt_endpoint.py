# SPDX-License-Identifier: Apache-2.0
"""The state machine of negotiations in C says the same as that in Python, whatever a peer says."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.application import clibrary
from koala_adapter.negotiation import applicationside as nt
from tests.examples import examples

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real("cc")

SOURCES = Path(clibrary.__file__).parent
ENDPOINT = r"""
#include "koala_nt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Reads "h" or "t" and a frame: a template that is heard, or to be told. Writes the state, and a frame of the answer. */
static void put(const NT *nt) {
    static char data[NT_LARGEST + 1];
    int size = nt ? NT_Write(nt, data, sizeof data) : 0;
    if (size < 0) abort();
    printf("%08d\n", size);
    fwrite(data, 1, (size_t)size, stdout);
}
int main(void) {
    NT_Endpoint *endpoint = calloc(1, sizeof *endpoint);
    NT *nt = calloc(2, sizeof *nt);
    char *data = malloc(NT_LARGEST), header[11] = {0};
    endpoint->side = NT_APPLICATION;
    while (fread(header, 1, 10, stdin) == 10) {
        NT_Negotiation *happened = NULL;
        int size = atoi(header + 1), answered = 0;
        if (fread(data, 1, (size_t)size, stdin) != (size_t)size || NT_Read(data, (size_t)size, nt)) abort();
        if (header[0] == 'h')
            answered = NT_Hear(endpoint, nt, 1, &happened, nt + 1);
        else if ((answered = !NT_Tell(endpoint, nt, 1)))
            nt[1] = *nt;
        printf("%d %d\n", happened ? (int)happened->state : -1, answered);
        put(answered ? nt + 1 : NULL);
    }
    free(data);
    free(nt);
    free(endpoint);
    return 0;
}
"""
STATES = ("new", "offered", "asked", "accepting", "accepted", "agreed", "consumed", "rejected", "withdrawn", "expired",
          "lost", "broken")  # fmt: skip
RESOURCES = st.builds(
    nt.Resource,
    st.just("CPU"), st.integers(1, 4), st.sampled_from(["NT_REQUIRED", "NT_OPTIONAL"]),
    st.sampled_from(["NT_NEGOTIABLE", "NT_NEGOTIABLE", "NT_FIXED"]), cluster=st.sampled_from(["", "alpha"]),
)  # fmt: skip
TEMPLATES = st.builds(
    nt.Template,
    st.sampled_from(["1", "2"]), st.sampled_from(["RMS", "APPLICATION"]), st.just("a"), st.just("b"),
    st.sampled_from([*nt.STATUSES[:4], *nt.STATUSES[:4], *nt.STATUSES]),
    st.lists(RESOURCES, min_size=1, max_size=2, unique_by=lambda one: one.key).map(tuple),
    st.sampled_from(["", "grow", "grow"]), round=st.sampled_from([None, 1, 1, 2, 3]),
)  # fmt: skip
MOVES = st.tuples(st.booleans(), st.booleans(), TEMPLATES)
"""Whether it is heard or told; whether it is about what stands; and what is said."""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the endpoint in C as a program, with checks of every access to memory."""
    directory = tmp_path_factory.mktemp("endpoint")
    (directory / "endpoint.c").write_text(ENDPOINT, encoding="utf-8")
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    sources = [directory / "endpoint.c", SOURCES / "koala_nt.c"]
    subprocess.run(["cc", *options, "-I", SOURCES, "-o", directory / "endpoint", *sources], check=True)
    return directory / "endpoint"


def told(endpoint: nt.Endpoint, moves: list[tuple[bool, bool, nt.Template]]) -> Iterator[tuple[bytes, list[nt.Template], int, bool]]:
    """Yield each move as the program reads it, and what Python's endpoint made of it."""
    for hearing, standing, said in moves:
        stands = endpoint.standing(said.key)
        value = said
        if standing and stands is not None:
            status = "NT_NEGOTIATION" if said.status == "NT_NEGOTIATION" else said.status
            value = stands._replace(
                status=status, round=said.round, reason="", answer_within=None,
                resources=tuple(one._replace(status=status) for one in stands.resources),
            )  # fmt: skip
        try:
            nt.checked(value)
        except nt.NegotiationError:
            continue
        before = endpoint.state(value.key)
        sent = True
        if hearing:
            endpoint.receive(nt.frame(nt.build(value)), 0.001)
        else:
            try:
                endpoint.send(value, 0.001)
            except nt.NegotiationError:
                sent = False
        after = endpoint.state(value.key)
        received = bytearray(endpoint.data_to_send())
        answers = []
        while (payload := nt.unframed(received)) is not None:
            answers.append(nt.parse(payload))
        state = STATES.index(after) if hearing and after != before else -1
        yield (b"h" if hearing else b"t") + nt.frame(nt.build(value)), answers, state, sent


@examples(100)
@given(st.lists(MOVES, max_size=12))
def test_both_go_to_the_same_states_and_say_the_same(
    program: Path, moves: list[tuple[bool, bool, nt.Template]]
) -> None:
    """Template after template, heard and told in any order; only the words of a reason may differ."""
    # Complaints about nothing known are events in Python alone; and nothing is as long as in a hundred templates.
    expected = list(told(nt.Endpoint(), [one for one in moves if one[2].status != "NT_ERROR"]))
    done = subprocess.run([program], input=b"".join(one[0] for one in expected), capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    output = bytearray(done.stdout)
    for move, answers, state, _ in expected:
        line, _, rest = bytes(output).partition(b"\n")
        output = bytearray(rest)
        size = int(output[:8])
        payload = bytes(output[9 : 9 + size])
        del output[: 9 + size]
        theirs = [nt.parse(payload)] if size else []
        assert int(line.split()[0]) == state, move
        assert [one._replace(reason="") for one in theirs] == [one._replace(reason="") for one in answers], move
