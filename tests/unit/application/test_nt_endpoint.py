# SPDX-License-Identifier: Apache-2.0
"""The state machine of negotiations in C says the same as that in Python, whatever a peer says."""

from __future__ import annotations

import io
import random
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from koala_adapter import negotiation as nt
from koala_adapter.application import c as c_library
from tests.examples import repeated

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.real("cc")

SOURCES = Path(c_library.__file__).parent
ENDPOINT = r"""
#include "koala_nt.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* Reads "h" or "t" and a frame: a template that is heard, or to be told; "z": all begins anew. Writes the state and a
 * frame of the answer. */
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
        if (header[0] == 'z') {
            memset(endpoint, 0, sizeof *endpoint);
            endpoint->side = NT_APPLICATION;
            continue;
        }
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
SEQUENCES = 300
USUAL = {
    "new": ["told NT_NEGOTIATION", "heard NT_NEGOTIATION"],
    "offered": ["heard NT_ACCEPTED", "heard NT_NEGOTIATION"],
    "asked": ["told NT_ACCEPTED", "told NT_NEGOTIATION"],
    "accepting": ["heard NT_COMMITTED", "heard NT_NEGOTIATION"],
    "accepted": ["told NT_COMMITTED", "heard NT_ACCEPTED"],
    "agreed": ["heard NT_ACCEPTED", "heard NT_COMMITTED", "heard NT_CONSUMED", "told NT_CONSUMED"],
}
"""What mostly follows in a state; in those where all has ended, anything does."""


def somebody_says(chance: random.Random, endpoint: nt.Endpoint) -> tuple[nt.Template, bool]:
    """Return a template, mostly one that stands, with some status, and sometimes changed; and whether it is heard."""
    resources = tuple(
        nt.Resource("CPU", chance.randint(1, 3), chance.choice(["NT_REQUIRED", "NT_OPTIONAL"]),
                    chance.choice(["NT_NEGOTIABLE"] * 3 + ["NT_FIXED"]), cluster=cluster)
        for cluster in chance.choice([[""], [""], ["", "alpha"]])
    )  # fmt: skip
    initiator = chance.choice(["RMS", "APPLICATION"])
    direction = chance.choice(["", "grow", "grow"])
    first = nt.Template(chance.choice("1112"), initiator, "a", "b", resources=resources, direction=direction)
    value = endpoint.standing(first.key) or first
    usual = chance.random() < 0.8
    if chance.random() < (0.1 if usual else 0.4):  # another quantity, or something declined
        one = chance.choice(value.resources)
        changed = one._replace(quantity=chance.randint(1, 3), status=chance.choice(["NT_NEGOTIATION", "NT_REJECTED"]))
        value = value._replace(resources=tuple(changed if other == one else other for other in value.resources))
    who, status = chance.choice(["told", "heard"]), chance.choice(nt.STATUSES[:7])
    if usual:
        who, status = chance.choice(USUAL.get(endpoint.state(first.key), [f"{who} {status}"])).split()
    said = value._replace(
        status=status, round=chance.choice([None, None, value.round, (value.round or 0) + 1]), reason="",
        answer_within=None,
        resources=tuple(one if one.declined else one._replace(status=status) for one in value.resources),
    )  # fmt: skip
    return said, who == "heard"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give the endpoint in C as a program, with checks of every access to memory."""
    directory = tmp_path_factory.mktemp("endpoint")
    (directory / "endpoint.c").write_text(ENDPOINT, encoding="utf-8")
    options = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-O1", "-fsanitize=address,undefined"]
    sources = [directory / "endpoint.c", SOURCES / "koala_nt.c"]
    subprocess.run(["cc", *options, "-I", SOURCES, "-o", directory / "endpoint", *sources], check=True)
    return directory / "endpoint"


def conversation(chance: random.Random) -> Iterator[tuple[bytes, list[nt.Template], int]]:
    """Yield moves as the program reads them, with what Python's endpoint answers, and where it is then."""
    endpoint = nt.Endpoint()
    for _ in range(chance.randint(4, 14)):
        value, hearing = somebody_says(chance, endpoint)
        try:
            payload = nt.build(value)
        except nt.NegotiationError:
            continue
        before = endpoint.state(value.key)
        if hearing:
            endpoint.hear(value, 0.001)
        else:
            with suppress(nt.NegotiationError):
                endpoint.tell(value, 0.001)
        after = endpoint.state(value.key)
        answers = endpoint.take_outbox()
        state = STATES.index(after) if hearing and after != before else -1
        yield (b"h" if hearing else b"t") + nt.frame(payload), answers, state


def test_both_go_to_the_same_states_and_say_the_same(program: Path) -> None:
    """Template after template, heard and told in any order; only the words of a reason may differ."""
    chance = random.Random(9)
    expected = []
    data = b""
    for _ in range(repeated(SEQUENCES)):
        moves = list(conversation(chance))
        data += b"z%08d\n" % 0 + b"".join(one[0] for one in moves)
        expected += moves
    done = subprocess.run([program], input=data, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    output = io.BytesIO(done.stdout)
    for move, answers, state in expected:
        line, size = output.readline(), int(output.read(9))
        theirs = [nt.parse(output.read(size))] if size else []
        assert int(line.split()[0]) == state, move
        assert [one._replace(reason="") for one in theirs] == [one._replace(reason="") for one in answers], move
    reached = {STATES[state] for _, _, state in expected if state >= 0}
    assert reached == {"asked", "accepted", "agreed", "consumed", "rejected", "withdrawn", "expired", "broken"}
