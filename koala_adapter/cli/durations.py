# SPDX-License-Identifier: Apache-2.0
"""Durations on the command line, as they are written in job and site files."""

from __future__ import annotations

import click


def in_seconds(ctx: click.Context, param: click.Parameter, value: str | None) -> float | None:
    """Return the seconds of a duration such as 30d; None for none. Raises click's error for what is no duration."""
    from koala_adapter.config.fields import DURATION_WORDS, NotAllowedError, parse_duration

    if value is None:
        return None
    try:
        found = parse_duration(value)
    except NotAllowedError as error:
        raise click.BadParameter(f"found {value!r}, allowed is {error}", ctx, param) from error
    if not isinstance(found, int | float) or found < 0:
        raise click.BadParameter(f"found {value!r}, allowed is {DURATION_WORDS}", ctx, param)
    return float(found)
