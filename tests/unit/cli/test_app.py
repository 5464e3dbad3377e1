# SPDX-License-Identifier: Apache-2.0
"""``koala app``: what it writes is whole, compiles with what pkg-config says, and overwrites nothing of others."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner

from koala_adapter.application.shipping import C_FILES, FILE_NAME, NEGOTIATION_FILE_NAME, PKG_CONFIG_FILE
from koala_adapter.cli.koala import koala

if TYPE_CHECKING:
    from pathlib import Path

FILES = [FILE_NAME, NEGOTIATION_FILE_NAME, *C_FILES, PKG_CONFIG_FILE]
PROGRAM = """\
#include <koala_app.h>
int main(void) {
    koala_app *app = koala_app_join("any", NULL, NULL, "");
    int size = app ? koala_app_size(app) : 0;
    koala_app_close(app);
    return size == 1 ? 0 : 1;
}
"""


def install(directory: Path) -> tuple[int, str, str]:
    """Run the command; return its exit code and what it printed, also of errors."""
    result = CliRunner().invoke(koala, ["app", "--install", str(directory)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.stdout, result.stderr


def test_it_says_what_it_wrote_and_may_write_it_again(tmp_path: Path) -> None:
    """All files are there, each is named, and an older version of them is replaced."""
    directory = tmp_path / "new" / "library"
    written = "".join(f"wrote {directory / name}\n" for name in FILES)
    assert install(directory) == (0, written, "")
    header = directory / "koala_app.h"
    whole = header.read_text(encoding="utf-8")
    header.write_text("\n".join(whole.split("\n")[:10]), encoding="utf-8")
    assert install(directory) == (0, written, "")
    assert header.read_text(encoding="utf-8") == whole


@pytest.mark.parametrize("name", FILES)
def test_files_of_others_stay(tmp_path: Path, name: str) -> None:
    """Nothing is written where another file has one of the names, or a link that leads elsewhere."""
    mine = tmp_path / name
    mine.write_text("mine", encoding="utf-8")
    code, output, complaint = install(tmp_path)
    assert (code, output) == (1, "")
    assert f"{mine} exists and is not one that koala has written" in " ".join(complaint.split())
    assert [path.name for path in tmp_path.iterdir()] == [name]
    mine.unlink()
    mine.symlink_to(tmp_path / "elsewhere")
    assert install(tmp_path)[0] == 1
    assert not (tmp_path / "elsewhere").exists()


def test_a_directory_that_pkg_config_cannot_read_is_refused(tmp_path: Path) -> None:
    """A blank would end its path."""
    code, _, complaint = install(tmp_path / "my library")
    assert code == 1
    assert "without blanks" in " ".join(complaint.split())
    assert list(tmp_path.iterdir()) == []


@pytest.mark.real("cc", "pkg-config")
def test_a_program_is_compiled_with_what_pkg_config_says(tmp_path: Path) -> None:
    """The command of the help text builds a program that runs, outside koala, as a rigid one."""
    assert install(tmp_path)[0] == 0
    environment = {"PATH": os.environ["PATH"], "PKG_CONFIG_PATH": str(tmp_path)}

    def told(*options: str) -> list[str]:
        command = ["pkg-config", *options, "koala_app"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.split()

    (tmp_path / "program.c").write_text(PROGRAM, encoding="utf-8")
    program = str(tmp_path / "program")
    sources, flags = told("--variable=sources"), told("--cflags", "--libs")
    subprocess.run(["cc", "-o", program, str(tmp_path / "program.c"), *sources, *flags], check=True)
    assert subprocess.run([program], env=environment, check=False).returncode == 0


def test_the_file_for_python_runs_alone(tmp_path: Path) -> None:
    """It needs nothing but the standard library, and shows no more names than it documents."""
    assert install(tmp_path)[0] == 0
    text = "from koala_app import *; app = join(); print(app.rank, app.size, app.point())"
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); exec({text!r})"],
        env={}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout == "0 1 None\n"
