# SPDX-License-Identifier: Apache-2.0
"""Durations, host names and variables: what is taken, and what is refused because it has two meanings."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from koala_adapter.config.fields import (
    DURATION_PATTERN,
    Environment,
    Host,
    Seconds,
    WholeSeconds,
    parse_duration,
)
from koala_adapter.config.tomlfile import show_duration

HOST: TypeAdapter[str] = TypeAdapter(Host)
ENVIRONMENT: TypeAdapter[dict[str, str]] = TypeAdapter(Environment)
SECONDS: TypeAdapter[float] = TypeAdapter(Seconds)
WHOLE_SECONDS: TypeAdapter[int] = TypeAdapter(WholeSeconds)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("00:00:01", 1),
        ("1:30:00", 5400),
        ("100:00:00", 360_000),
        ("2-00:00:10", 172_810),
        ("90s", 90),
        ("45m", 2700),
        ("1h30m", 5400),
        ("1d2h3m4s", 93_784),
        ("0s", 0),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    """Clock times and numbers with units give seconds."""
    assert parse_duration(text) == seconds
    assert re.search(DURATION_PATTERN, text)


@pytest.mark.parametrize(
    "text",
    [
        "90",
        "10:30",
        "",
        "1:60:00",
        "1:00:60",
        "h",
        "30m1h",
        "1h1h",
        "1.5h",
        "-5s",
        "+5s",
        "1 h",
        "1H",
        "1w",
        "\u0661s",
        "1h\n",
    ],
)
def test_durations_with_two_meanings_or_none_are_refused(text: str) -> None:
    """Nothing is guessed: the refusal lists the forms."""
    with pytest.raises(ValueError, match="HH:MM:SS"):
        parse_duration(text)
    assert not re.search(DURATION_PATTERN.replace("$", r"\Z"), text)


@given(st.text(st.sampled_from("0123456789:-dhms \n"), max_size=10))
def test_schema_and_parser_agree_on_durations(text: str) -> None:
    """What an editor accepts by the schema is what the program accepts."""
    try:
        parse_duration(text)
        accepted = True
    except ValueError:
        accepted = False
    assert bool(re.search(DURATION_PATTERN.replace("$", r"\Z"), text)) == accepted


@given(st.integers(min_value=0, max_value=10**8))
def test_shown_durations_are_read_back(seconds: int) -> None:
    """What a message shows can be written into a file."""
    assert parse_duration(show_duration(seconds)) == seconds


def test_numbers_are_durations_but_true_is_not() -> None:
    """Numbers pass as they are, other types are refused."""
    assert SECONDS.validate_python(0.5) == 0.5
    assert WHOLE_SECONDS.validate_python(90) == 90
    assert show_duration(0.5) == "0.5 s"
    for adapter, value in (
        (SECONDS, True),
        (WHOLE_SECONDS, True),
        (WHOLE_SECONDS, 1.5),
        (SECONDS, None),
        (SECONDS, []),
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(value)


@pytest.mark.parametrize("host", ["a", "head.example.org", "10.0.0.1", "::1", "fe80::1%eth0", "my_host", "0.0.0.0"])
def test_hosts(host: str) -> None:
    """Host names and addresses of both kinds are taken."""
    assert HOST.validate_python(host) == host


@pytest.mark.parametrize("host", ["", "a b", "a:80", "http://a", "-a", "a-", "a..b", ".a", "a\n", "é", "x" * 300])
def test_what_is_no_host_is_refused(host: str) -> None:
    """Ports, protocols and stray characters are refused."""
    with pytest.raises(ValidationError):
        HOST.validate_python(host)


@pytest.mark.parametrize("name", ["", "1A", "A B", "A=B", "é", "KOALA_RANK", "A\n"])
def test_names_that_no_variable_can_have_are_refused(name: str) -> None:
    """So are those that koala sets itself."""
    with pytest.raises(ValidationError):
        ENVIRONMENT.validate_python({name: "x"})


@pytest.mark.parametrize("name", ["BASH_FUNC_module%%", "BASH_FUNC_ml()", "my.option", "A-B"])
def test_names_of_exported_functions_and_other_programs_are_taken(name: str) -> None:
    """The environment modules are shell functions, and not every program keeps to the names of a shell."""
    assert ENVIRONMENT.validate_python({name: "x"}) == {name: "x"}


def test_variables() -> None:
    """Names and values pass unchanged; a value that no environment can hold is refused."""
    assert ENVIRONMENT.validate_python({"_A1": "", "koala": "x y\n"}) == {"_A1": "", "koala": "x y\n"}
    with pytest.raises(ValidationError):
        ENVIRONMENT.validate_python({"A": "a\0b"})
