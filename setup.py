# SPDX-License-Identifier: Apache-2.0
"""Finds the packages under their two roots, and copies the manual, examples/ and conf/ into the wheel.

Metadata, dependencies and entry points are in setup.cfg.
"""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

PLUGINS = find_packages("plugins", include=["koala_*"])
SHIPPED = {"conf": ("*",), "docs": ("*.md", "*.schema.json"), "examples": ("**/*",)}
MADE_HERE = ("__pycache__", ".pytest_cache")
INCLUDED = re.compile(r"\{literalinclude\} \.\./(\S+)")


class BuildWithManual(build_py):
    """Copies the manual into ``koala_adapter/shipped``; an editable installation reads it where it is."""

    def run(self) -> None:
        """Build the packages, and copy the manual."""
        super().run()
        if not self.editable_mode:
            for source, target in self._shipped().items():
                self.mkpath(str(Path(target).parent))
                self.copy_file(source, target)

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:  # noqa: FBT001, FBT002 - the signature of setuptools
        """Return all files of the wheel, with those of the manual."""
        copied = [] if self.editable_mode else [*self._shipped().values()]
        return [*super().get_outputs(include_bytecode), *copied]

    def _shipped(self) -> dict[str, str]:
        """Return the target of each file of the manual."""
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


setup(
    packages=[*find_packages(include=["koala_adapter", "koala_adapter.*"]), *PLUGINS],
    package_dir={name: f"plugins/{name}" for name in PLUGINS if "." not in name},
    cmdclass={"build_py": BuildWithManual},
)
