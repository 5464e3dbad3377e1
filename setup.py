# SPDX-License-Identifier: Apache-2.0
"""Has the wheel carry what messages refer to: the manual, examples/ and conf/. All else: setup.cfg."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SHIPPED = {"conf": ("*",), "docs": ("*.md", "*.schema.json"), "examples": ("**/*",)}
MADE_HERE = ("__pycache__", ".pytest_cache")
INCLUDED = re.compile(r"\{literalinclude\} \.\./(\S+)")


class BuildWithManual(build_py):
    """Copies them into ``koala_adapter/shipped``; an editable installation reads them where they are."""

    def run(self) -> None:
        """Build as ever, and copy."""
        super().run()
        if not self.editable_mode:
            for source, target in self._shipped().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002 - the signature of setuptools
        """Name what was copied, too: what is not named gets into no wheel."""
        copied = [] if self.editable_mode else [*self._shipped().values()]
        return [*super().get_outputs(include_bytecode), *copied]

    def get_source_files(self) -> list[str]:
        """Name what is copied, so that a source distribution has it."""
        return [*super().get_source_files(), *self._shipped()]

    def _shipped(self) -> dict[str, str]:
        """Return where each file goes."""
        files = {
            file
            for directory, patterns in SHIPPED.items()
            for pattern in patterns
            for file in Path(directory).glob(pattern)
            if file.is_file() and not set(MADE_HERE).intersection(file.parts)
        }
        for page in Path("docs").glob("*.md"):
            files.update(Path(found) for found in INCLUDED.findall(page.read_text(encoding="utf-8")))
        return {str(file): str(Path(self.build_lib, "koala_adapter", "shipped", file)) for file in sorted(files)}


setup(cmdclass={"build_py": BuildWithManual})
