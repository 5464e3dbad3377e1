# SPDX-License-Identifier: Apache-2.0
"""Lines between a plugin and its DRMAA helper."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koala_adapter.errors import ProtocolError
from koala_adapter.lrm.drmaa.client import decode_result
from koala_adapter.lrm.drmaa.libraries import FailureKind
from koala_adapter.lrm.drmaa.protocol import (
    AbandonBatches,
    ControlAction,
    ControlJobs,
    Controlled,
    Done,
    Failure,
    JobStatus,
    ListBatches,
    Listed,
    ListedBatch,
    ListedJob,
    NumberedRequest,
    NumberedResult,
    Opened,
    OpenSession,
    ReachLrm,
    Refusal,
    Request,
    Result,
    SubmitJobs,
    Submitted,
    Template,
    decode_request,
    encode,
)

TEMPLATE = Template(
    name="k1",
    remote_command="/bin/sh",
    arguments=("/a b/'\n\"\\é.sh",),
    working_directory="/tmp",
    output_path="/tmp/k1.{index}.out",
    native_specification="-l h_rt=60",
    held=True,
)
REQUESTS: tuple[Request, ...] = (
    OpenSession(contact="c", ledger="/l"),
    SubmitJobs(template=TEMPLATE, count=50),
    SubmitJobs(template=TEMPLATE, count=2, index_variable="KOALA_INDEX"),
    ControlJobs(action=ControlAction.TERMINATE, ids=("1.1", "1.2")),
    ListBatches(prefix="k"),
    AbandonBatches(keys=("k1",)),
    ReachLrm(),
)
RESULTS: tuple[Result, ...] = (
    Opened(system="SGE 8.1.9", implementation="SGE", version="1.0", contact="session=x"),
    Submitted(ids=("1.1", "1.2")),
    Controlled(refusals=(Refusal(id="1.1", kind=FailureKind.NOT_FOUND, message="gone"),)),
    Listed(
        batches=(
            ListedBatch(
                key="k1",
                count=2,
                submitted_at=1.5,
                jobs=(ListedJob(id="1.1", status=JobStatus.DONE, exit_code=3, ended_at=9.25),),
            ),
        )
    ),
    Done(),
    Failure(kind=FailureKind.UNAVAILABLE, message="unable to contact qmaster"),
)


@pytest.mark.parametrize(
    "request_", REQUESTS, ids=lambda request: f"{request.op}-{getattr(request, 'index_variable', None)}"
)
def test_requests_survive_the_line(request_: Request) -> None:
    """Every kind of request arrives as it was sent, in one line, whatever characters it holds."""
    line = encode(NumberedRequest(number=7, request=request_))
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert decode_request(line) == NumberedRequest(number=7, request=request_)


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: type(result).__name__)
def test_results_survive_the_line(result: Result) -> None:
    """Every kind of result arrives as it was sent."""
    assert decode_result(encode(NumberedResult(number=7, result=result))) == NumberedResult(number=7, result=result)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}",
        b"error: commlib error\n",
        b'{"number": 1, "request": {"op": "format-disk"}}',
        b'{"number": 1, "request": {"op": "reach", "extra": 1}}',
        b'{"number": "x", "request": {"op": "reach"}}',
        b'{"number": 1, "request": {"op": "control", "action": "explode", "ids": []}}',
    ],
)
def test_what_is_no_request_is_refused(line: bytes) -> None:
    """Unknown operations, unknown keys, wrong types and what is no JSON are refused with a sentence of ours."""
    with pytest.raises(ProtocolError, match="not understood"):
        decode_request(line)


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    """No bytes lead to anything but a message or a ProtocolError."""
    for decode in (decode_request, decode_result):
        with pytest.raises(ProtocolError):
            decode(noise)


@pytest.mark.parametrize(
    "line",
    [
        b'{"number": 1, "result": {}}',
        b'{"number": 1, "result": {"result": "done", "extra": 1}}',
        b'{"number": 1, "result": {"result": "listed", "batches": [{"key": "k", "count": 1, "submitted_at": "x"}]}}',
        b'{"number": 1, "result": {"result": "done"}, "more": 1}',
    ],
)
def test_what_is_no_result_is_refused(line: bytes) -> None:
    """Likewise in the other direction."""
    with pytest.raises(ProtocolError, match="not understood"):
        decode_result(line)


def test_the_helper_starts_without_what_only_its_parent_needs() -> None:
    """One runs for each cluster, and is started again when it has died: it takes a quarter of the time so."""
    heavy = ("pydantic", "anyio", "asyncio", "structlog", "importlib.metadata", "koala_adapter.lrm.contract")
    code = f"import sys, koala_adapter.lrm.drmaa.helper; print(*[one for one in {heavy} if one in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
