# SPDX-License-Identifier: Apache-2.0
"""What a member of a message between an agent and the control center may hold: bounds, and bytes as text. Pure."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Literal, TypeAlias

from pydantic import EncodedBytes, EncoderProtocol, Field
from pydantic_core import PydanticCustomError

OUTPUT_LIMIT = 128 * 1024
"""Most bytes of output in one message."""

LARGEST_FRAME = 9 + 65_536
"""Most bytes of what an application says at once: a frame, with its header."""

FILES_LIMIT = 10_000
"""Most output files of one task."""


class StrictBase64(EncoderProtocol):
    """RFC 4648 base64 with nothing else between: Python's default skips what it does not know."""

    @classmethod
    def decode(cls, data: bytes) -> bytes:
        """Return the bytes that ``data`` stands for."""
        try:
            return base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise PydanticCustomError("base64", "not base64") from None

    @classmethod
    def encode(cls, value: bytes) -> bytes:
        """Return ``value`` in base64."""
        return base64.b64encode(value)

    @classmethod
    def get_json_format(cls) -> str:
        """Name of the encoding in a JSON schema."""
        return "base64"


Name: TypeAlias = Annotated[str, Field(min_length=1, max_length=200, pattern=r"\A[!-~]+\z")]
Word: TypeAlias = Annotated[str, Field(max_length=255, pattern=r"\A[!-~]*\z")]
Text: TypeAlias = Annotated[str, Field(max_length=2000)]
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Duration: TypeAlias = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Offset: TypeAlias = Annotated[int, Field(ge=0, le=2**50)]
Data: TypeAlias = Annotated[bytes, EncodedBytes(encoder=StrictBase64)]
OutputData: TypeAlias = Annotated[Data, Field(max_length=OUTPUT_LIMIT)]
Frame: TypeAlias = Annotated[Data, Field(min_length=1, max_length=LARGEST_FRAME)]
StreamName: TypeAlias = Literal["out", "err"]
FileNumber: TypeAlias = Annotated[int, Field(ge=1, le=FILES_LIMIT)]
Count: TypeAlias = Annotated[int, Field(ge=0, le=2**50)]
