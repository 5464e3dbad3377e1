# SPDX-License-Identifier: Apache-2.0
"""Loader at the beginning of the file that a job script carries: imports the agent's modules from that file."""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Dict, Optional, Type


class AgentModules:
    """Finds and loads modules by their text. Each is compiled when it is first imported.

    They keep their names and line numbers, so that a traceback tells the file in koala-adapter and the line in it.
    """

    def __init__(self) -> None:
        self.texts: "Dict[str, str]" = {}

    def find_spec(self, name: str, _path: "object" = None, _target: "object" = None) -> "Optional[ModuleSpec]":
        """Return how a module is loaded; None when it is not one of ours."""
        if name not in self.texts:
            return None
        make_spec: "Type[ModuleSpec]" = type(sys.__spec__)  # without the cost of importing importlib
        package = any(other.startswith(name + ".") for other in self.texts)
        return make_spec(name, self, origin=self._file(name), is_package=package)  # type: ignore[arg-type]

    def create_module(self, _spec: "ModuleSpec") -> None:
        """Return None: Python creates the module."""

    def exec_module(self, module: "ModuleType") -> None:
        """Compile and run a module."""
        name = module.__name__
        exec(compile(self.texts[name], self._file(name), "exec"), module.__dict__)  # noqa: S102 - our own

    def get_source(self, name: str) -> str:
        """Return a module's text, for the lines of a traceback."""
        return self.texts[name]

    @staticmethod
    def _file(name: str) -> str:
        return name.replace(".", "/") + ".py"
