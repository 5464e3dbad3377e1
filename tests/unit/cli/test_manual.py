# SPDX-License-Identifier: Apache-2.0
"""What messages refer to can be had wherever koala is installed, by ``koala docs`` and ``koala conf``."""

from __future__ import annotations

import ast
import json
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pydantic
import pytest
from click.testing import CliRunner

from koala_adapter.cli.koala import koala
from koala_adapter.cli.manual import chosen, shipped, shown_name, summary
from tests.unit.config.test_config_file import SCHEMA_WRITER

ROOT = Path(__file__).parents[3]
SOURCES = [path for room in ("koala_adapter", "plugins") for path in sorted((ROOT / room).rglob("*.py"))]
IN_REPOSITORY = re.compile(r"\b(?:docs|conf|examples|benchmarks)/[\w.-]+")
LOOKED_FOR = re.compile(r"(?:docs|conf)(?:\b|[ /])|examples/|benchmarks/")
ASKED_FOR = re.compile(r"koala (docs|conf) (\w(?:[\w.@-]*\w)?)")


@cache
def said(path: Path) -> list[str]:
    """Return the texts of a module that a person may come to read: all but comments, and docstrings of no command.

    Of a module without any word that is looked for, none: to parse all of them takes seconds.
    """
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source))) if LOOKED_FOR.search(source) else []
    # A text below a name says what the name means, as a docstring does.
    documents = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    documents -= {
        id(node.body[0].value)
        for node in nodes
        if isinstance(node, ast.FunctionDef)
        and isinstance(node.body[0], ast.Expr)
        and any("click" in ast.unparse(one) for one in node.decorator_list)
    }
    constants = [node.value for node in nodes if isinstance(node, ast.Constant) and id(node) not in documents]
    return [text for text in constants if isinstance(text, str)]


def invoke(*arguments: str) -> str:
    result = CliRunner().invoke(koala, list(arguments))
    assert result.exit_code == 0, result.output
    return result.stdout


def test_no_message_names_a_file_of_the_repository() -> None:
    """Who has installed the wheel has none: messages say by which command a page or an example is had."""
    found = {
        f"{path.relative_to(ROOT)}: {text}"
        for path in SOURCES
        for one in said(path)
        for text in IN_REPOSITORY.findall(one)
    }
    assert found == set()


@pytest.mark.parametrize("name", [file.name for file in shipped("conf", "*")])
def test_no_example_names_a_file_of_the_repository(name: str) -> None:
    """Nor does what `koala conf` prints, and what it refers to is there."""
    text = invoke("conf", name)
    assert IN_REPOSITORY.findall(text) == []
    for command, other in ASKED_FOR.findall(text):
        assert invoke(command, other).strip()


def test_what_messages_refer_to_is_there() -> None:
    wanted = {match for path in SOURCES for one in said(path) for match in ASKED_FOR.findall(one)}
    assert {("docs", "site-file"), ("conf", "job_submit.lua"), ("docs", "wiki")} <= wanted
    for command, name in wanted:
        assert invoke(command, name).strip()


@pytest.mark.parametrize(("kind", "pattern"), [("conf", "*"), ("docs", "*.md")])
def test_lists_say_what_each_is(kind: str, pattern: str) -> None:
    files = shipped(kind, pattern)
    lines = invoke(kind).splitlines()
    assert [line.split()[0] for line in lines] == [shown_name(file) for file in files]
    for file in files:
        assert len(summary(file)) > 2
        assert chosen(files, file.name, listed_by="") == file


def test_pages_show_what_they_include() -> None:
    """Whole files, the lines that are named, and single functions, as in the rendered manual."""
    pages = {file.stem: CliRunner().invoke(koala, ["docs", file.stem]).output for file in shipped("docs", "*.md")}
    assert [name for name, text in pages.items() if "literalinclude" in text] == []
    assert "```python\n# SPDX-License-Identifier: Apache-2.0\n" in pages["plugins"]
    assert "class TinyqLrm(Lrm):" in pages["plugins"]
    assert "```python\ndef main(" in pages["adaptive"]
    assert "```c\n    connection = NT_Connect(" in pages["negotiation"]


def test_the_page_on_the_command_line_has_every_help_text() -> None:
    """Each as `--help` prints it on 80 columns, those of commands in groups, too."""
    text = invoke("docs", "cli")
    assert "<!-- help" not in text
    for words in (["run"], ["wiki", "serve"], ["negotiation", "check"]):
        shown = CliRunner().invoke(koala, [*words, "--help"], prog_name="koala", terminal_width=80).stdout
        assert shown in text
    assert "Usage: koala [OPTIONS] COMMAND [ARGS]..." in text


def test_an_unknown_name_is_refused_with_those_that_there_are() -> None:
    """And nothing outside is ever read."""
    for name in ("../setup", "nothing"):
        result = CliRunner().invoke(koala, ["docs", name])
        assert result.exit_code != 0
        assert "site-file" in result.output


def test_the_examples_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / "examples"
    assert "README.md" in invoke("docs", "--examples", str(target))
    assert (target / "hello.toml").read_text() == (ROOT / "examples" / "hello.toml").read_text()
    assert (target / "plugin" / "pyproject.toml").is_file()
    result = CliRunner().invoke(koala, ["docs", "--examples", str(target)])
    assert result.exit_code != 0
    assert "exists" in result.output


def test_schemas_are_those_of_the_manual() -> None:
    """That of jobs at least; that of sites also has the plugins of others."""
    if tuple(map(int, pydantic.VERSION.split(".")[:2])) < SCHEMA_WRITER:
        pytest.skip("another pydantic words the same schemas in another way")
    assert json.loads(invoke("schema", "job")) == json.loads((ROOT / "docs" / "job.schema.json").read_text())
    assert "slurm_settings" in json.loads(invoke("schema", "site"))["$defs"]


# -- completion: what a shell makes of the script -----------------------------------------------------------------

COMPLETIONS = [
    ("koala ", "init run submit", "--site"),
    ("koala sta", "status", "submit"),
    ("koala --si", "--site", "--state"),
    ("koala wiki ", "ask serve", "run"),
    ("koala --state x wiki serve --cl", "--cluster", "--site"),
    ("koala schema ", "site job", "run"),
    ("koala completion b", "bash", "fish"),
    ("koala run --q", "--quiet", "--once"),
]
BASH = """
source {script}
compopt() {{ :; }}
COMP_WORDS=(koala sta); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_koala_completion koala
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(("line", "offered", "not_offered"), COMPLETIONS)
def test_words_are_completed(line: str, offered: str, not_offered: str) -> None:
    """As the script of bash asks for it."""
    words = line.split(" ")
    asked = {"_KOALA_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    done = CliRunner().invoke(koala, env=asked, prog_name="koala")
    found = {found.partition(",")[2] for found in done.stdout.splitlines()}
    assert set(offered.split()) <= found
    assert not_offered not in found


def test_bash_completes(tmp_path: Path) -> None:
    """By its script, and the command as it is installed."""
    if shutil.which("bash") is None:
        pytest.skip("no bash here")
    script = tmp_path / "koala.bash"
    script.write_text(invoke("completion", "bash"), encoding="utf-8")
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH.format(script=script)],
        env={"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["status"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_are_told_how_to_ask(shell: str) -> None:
    """Their scripts ask the program as that of bash does."""
    assert f"_KOALA_COMPLETE={shell}_complete " in invoke("completion", shell)
