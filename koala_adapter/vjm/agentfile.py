# SPDX-License-Identifier: Apache-2.0
"""The agent as one file: the text of its modules, as each is, behind a few lines that import them from there."""

from __future__ import annotations

from functools import cache
from importlib import resources

from koala_adapter.vjm import agent

_LOADER = "modules"
"""The module that imports the others."""

_BEGINNING = """\


import gc

gc.disable()  # all that is imported stays: looking for garbage in it would cost a tenth of the start
modules = AgentModules()
sys.meta_path.insert(0, modules)
modules.texts["koala_adapter"] = modules.texts["koala_adapter.vjm"] = ""
"""

_MODULE = """\
modules.texts["{name}"] = r'''{text}'''
"""
"""Raw, so that it stands here as it stands in its file; a test holds that no module has three single quotes."""

_END = """\
import os
from koala_adapter.vjm.agent.program import main

status = main(CONFIGURATION)  # which the job script has set
os._exit(status)  # all is said and flushed; taking apart what was imported would only take time
"""


@cache
def agent_file() -> str:
    """Return the text of the file; the same whenever the modules are the same."""
    found = {
        entry.name.removesuffix(".py"): entry.read_text(encoding="utf-8")
        for entry in resources.files(agent).iterdir()
        if entry.name.endswith(".py")
    }
    loader = found.pop(_LOADER)
    package = agent.__name__
    modules = [
        _MODULE.format(name=package if name == "__init__" else f"{package}.{name}", text=text)
        for name, text in sorted(found.items())
    ]
    return "\n".join([loader + _BEGINNING, *modules, _END]).rstrip("\n")
