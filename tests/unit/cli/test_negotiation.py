# SPDX-License-Identifier: Apache-2.0
"""``koala negotiation``: the schemas come out whole, and a document is a template or refused in a sentence."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from lxml import etree

from koala_adapter.cli.jsonshapes import shape_schema
from koala_adapter.cli.koala import koala
from koala_adapter.negotiation.schema import to_object
from koala_adapter.negotiation.serviceside.document import build
from koala_adapter.negotiation.serviceside.template import Resource, Template
from tests.json_shapes import deviations
from tests.unit.negotiation.templates import PUBLISHED, full, templates

if TYPE_CHECKING:
    from pathlib import Path


def invoke(*arguments: object, given: bytes = b"") -> tuple[int, str, str]:
    """Run one command inside this process; return its exit code and what it printed, also of errors."""
    result = CliRunner().invoke(koala, ["negotiation", *map(str, arguments)], input=given)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result.exit_code, result.stdout, result.stderr


def test_the_printed_schemas_validate(tmp_path: Path) -> None:
    """Saved under the names by which they are known, they accept the published instance and one of ours."""
    for name, options in (("NT.xsd", []), ("NT-koala.xsd", ["--extension"])):
        code, output, _ = invoke("schema", *options)
        assert code == 0
        (tmp_path / name).write_text(output, encoding="utf-8")
    schema = etree.XMLSchema(etree.parse(tmp_path / "NT.xsd"))
    assert schema.validate(etree.fromstring(PUBLISHED))
    assert schema.validate(etree.fromstring(build(full())))
    assert not schema.validate(etree.fromstring(build(full()).replace(b'"shrink"', b'"up"')))


def test_a_template_is_shown(tmp_path: Path) -> None:
    """In words for people, and as JSON for programs."""
    path = tmp_path / "offer.xml"
    path.write_bytes(build(full()))
    code, output, _ = invoke("check", path)
    assert code == 0
    assert output.splitlines() == [
        "NT_NEGOTIATION in negotiation a:7-x._ of APPLICATION, node7 with fe80::1",
        "  3 GPU.x: NT_OPTIONAL, NT_NEGOTIABLE, NT_NEGOTIATION, on beta, for solver_1",
        "  2147483647 CPU: NT_REQUIRED, NT_FIXED, NT_NEGOTIATION",
    ]
    code, output, _ = invoke("check", "--json", "-", given=PUBLISHED)
    assert json.loads(output)["resources"][0]["quantity"] == 4


def test_json_is_as_its_schema_says() -> None:
    """What is printed of any template, with all members or the fewest; and the schema knows every member."""
    schema: Any = shape_schema("negotiation-template")

    @given(templates)
    def holds(template: Template) -> None:
        assert deviations(to_object(template), schema) == []

    holds()
    code, output, _ = invoke("check", "--json", "-", given=PUBLISHED)
    assert code == 0
    least = json.loads(output)
    assert deviations(least, schema) == []
    assert set(least) == set(schema["required"])
    assert deviations({**least, "status": "NT_MAYBE"}, schema) != []
    assert set(schema["properties"]) == {one.name for one in fields(Template) if one.init}
    assert set(schema["$defs"]["TemplateResource"]["properties"]) == {one.name for one in fields(Resource)}


@pytest.mark.parametrize(
    ("given", "named"),
    [(b"<NT/>", "NT_AgreementID"), (b"x" * 100_000, "too large"), (b"<!DOCTYPE NT><NT/>", "no document type")],
)
def test_what_is_no_template_is_refused(given: bytes, named: str) -> None:
    """The refusal says why, and the exit code that it is one."""
    code, output, error = invoke("check", "-", given=given)
    assert (code, output) == (1, "")
    assert named in error
