# SPDX-License-Identifier: Apache-2.0
"""Reads the results of a DRMAA helper process, in its parent: a listing of 100,000 jobs is 20 MiB. Pure."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from koala_drmaa.protocol import NumberedResult, Result, not_understood


class _Line(BaseModel, extra="forbid"):
    number: int
    result: Annotated[Result, Field(discriminator="result")]


def decode_result(line: bytes) -> NumberedResult:
    """Return the result of one line. Raises ProtocolError."""
    try:
        found = _Line.model_validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise not_understood(f"{where}: {first['msg']}") from error
    return NumberedResult(number=found.number, result=found.result)
