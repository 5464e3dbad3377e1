# SPDX-License-Identifier: Apache-2.0
"""Programs in C, in Python and in a shell: the C library is built here, and says, reads and refuses what koala does."""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from anyio import run_process, to_thread
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.application.shipping import NEGOTIATION_FILE_NAME, negotiation_file
from koala_adapter.negotiation import LARGEST_TEMPLATE, FrameBuffer, NegotiationError, Template, build, frame, parse
from tests.compiled import C_LIBRARY, MEMORY_CHECKED, WARNINGS, compiled
from tests.examples import examples, repeated
from tests.unit.negotiation.templates import PUBLISHED, Manager, full, listening, mutated, request, templates

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "negotiation"
CC = pytest.mark.real("cc")


@pytest.fixture(scope="module")
def rewriter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a program that reads and writes templates, with checks of every access to memory."""
    return compiled(tmp_path_factory, Path(__file__).with_name("rewriter.c"), *MEMORY_CHECKED)


def rewritten(program: Path, documents: list[bytes]) -> list[bytes]:
    """Return what the library makes of each document: another one that says the same, or "! " and why not."""
    data = b"".join(map(frame, documents))
    done = subprocess.run([program], input=data, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    return list(FrameBuffer().feed(done.stdout))


@CC
def test_it_reads_and_writes_what_koala_writes(rewriter: Path) -> None:
    """The published instance and one with all that koala adds come back byte for byte."""
    documents = [PUBLISHED, build(full()), build(request(memory=512)), build(full()).replace(b"\n  ", b"\n")]
    assert rewritten(rewriter, documents) == [*documents[:3], documents[1]]


@CC
@examples(5)
@given(st.lists(templates, min_size=1, max_size=30))
def test_it_reads_and_writes_every_template(rewriter: Path, values: list[Template]) -> None:
    documents = [build(value) for value in values]
    assert rewritten(rewriter, documents) == documents


@CC
@pytest.mark.hypothesis  # random: in the night there is more of it
def test_what_it_reads_is_a_template(rewriter: Path) -> None:
    """It takes no document that koala refuses, and finds in the others what koala does; memory is never hurt."""
    chance = random.Random(15)
    sources = [PUBLISHED, build(full()), build(request(memory=512))]
    good = 0
    for _ in range(repeated(4)):
        documents = [mutated(sources[number % 3], chance) or b" " for number in range(500)]
        for document, answer in zip(documents, rewritten(rewriter, documents), strict=True):
            if not answer.startswith(b"! "):
                good += 1
                assert parse(answer) == parse(document), document
    assert good


@CC
def test_it_refuses_what_could_harm(rewriter: Path) -> None:
    """Depth, size, encodings and markup that koala refuses, too."""
    documents = [
        b"<a>" * 9000, b"<!DOCTYPE NT><NT/>", b"<NT", b"\x00" * 50, b"<!--" * 100, PUBLISHED.decode().encode("utf-16"),
        PUBLISHED.replace(b"CPU", b"C" * 60_000), PUBLISHED.replace(b"1001", b"1" * 60_000),
        PUBLISHED.replace(b"NT_AgreementID", b"x" * 60_000), PUBLISHED.replace(b">4<", b">99999999999999999999<"),
    ]  # fmt: skip
    answers = rewritten(rewriter, [one[:LARGEST_TEMPLATE] for one in documents])
    assert [one[:20] for one in answers if not one.startswith(b"! ")] == []
    for document in documents:
        with pytest.raises(NegotiationError):
            parse(document)


@CC
async def test_a_c_program_negotiates(tmp_path_factory: pytest.TempPathFactory) -> None:
    """14 are asked for, 6 are idle, 6 are taken and allocated; and then none are left."""
    program = await to_thread.run_sync(compiled, tmp_path_factory, EXAMPLES / "evolving.c")
    async with listening(Manager()) as manager:
        for output, code in ((b"0: 6 processors\n2: 6 processors\n3: 6 processors\n", 0), (b"", 1)):
            access = await manager.access()
            manager.endpoints.clear()
            asking = [str(program), access.host, str(access.port), access.token, "14"]
            done = await run_process(asking, check=False)
            assert done.stdout.startswith(output)
            assert (done.returncode, done.stderr) == (code, b"")
        assert done.stdout == b"4: 0 processors: 14 CPU cannot be taken\n"
        assert manager.free == 0


async def test_a_python_program_negotiates(tmp_path: Path) -> None:
    """The example does as the one in C, beside the file that koala writes."""
    (tmp_path / NEGOTIATION_FILE_NAME).write_text(negotiation_file(), encoding="utf-8")
    program = EXAMPLES / "evolving.py"
    async with listening(Manager()) as manager:
        for said, code in (
            ("offer 6 \nagreed 6 \nconsumed 6 \n", 0),
            ("ended 14 14 CPU cannot be taken\n", 1),
        ):
            access = await manager.access()
            manager.endpoints.clear()
            asking = [sys.executable, str(program), access.host, str(access.port), access.token, "14"]
            done = await run_process(asking, check=False, env={"PYTHONPATH": str(tmp_path)})
            assert (done.stdout.decode(), done.stderr, done.returncode) == (said, b"", code)


@CC
def test_the_library_can_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "koala_nt.so"
    subprocess.run(["cc", *WARNINGS, "-shared", "-fPIC", "-o", library, C_LIBRARY / "koala_nt.c"], check=True)
    loaded = ctypes.CDLL(str(library))
    loaded.NT_Error.restype = ctypes.c_char_p
    assert loaded.NT_Connect(b"127.0.0.1", 1, None) == -1
    assert b"cannot connect" in loaded.NT_Error()


@pytest.mark.real("nc")
async def test_a_shell_negotiates() -> None:
    """A shell and nc do it as docs/negotiation.md says: 14 are asked for, 6 are taken; and then none are left."""
    program = EXAMPLES / "evolving.sh"
    assert f"`{program.relative_to(ROOT)}`" in (ROOT / "docs" / "negotiation.md").read_text("utf-8")
    async with listening(Manager()) as manager:
        for said, code in (
            ("NT_NEGOTIATION: 6 processors\nNT_COMMITTED: 6 processors\nNT_CONSUMED: 6 processors\n", 0),
            ("NT_REJECTED: 14 processors\n", 1),
        ):
            access = await manager.access()
            manager.endpoints.clear()
            asking = [str(program), access.host, str(access.port), access.token, "14"]
            done = await run_process(asking, check=False, env={"PATH": os.environ["PATH"]})
            assert (done.stdout.decode(), done.stderr, done.returncode) == (said, b"", code)
        assert manager.free == 0
