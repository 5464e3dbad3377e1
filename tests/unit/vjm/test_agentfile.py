# SPDX-License-Identifier: Apache-2.0
"""The agent as one file: what is in it, for which Python, what it costs to hold a processor, and many of them."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
from pathlib import Path

from koala_adapter.vjm import agent, channel
from koala_adapter.vjm.certificate import load_or_create, server_context
from koala_adapter.vjm.jobscript import agent_file

DIRECTORY = Path(agent.__file__).parent
MODULES = {path.stem: path.read_text() for path in DIRECTORY.glob("*.py")}
LOADED = """
sys.stderr.write(" ".join(sys.modules))
sys.stderr.flush()
os._exit(0)
"""


def run(source: str) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-B", "-c", "import sys; exec(sys.stdin.buffer.read())"],
        input=source, capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    return done.stderr


def with_end(text: str) -> str:
    """Return the file with another end than that which holds a processor."""
    file, found = re.subn(r"^status = main.*\Z", lambda _: text, agent_file(), flags=re.MULTILINE | re.DOTALL)
    assert found == 1
    return file


def test_agent_is_python_36() -> None:
    """The syntax is that of Python 3.6, in each module and in the file."""
    for name, text in {**MODULES, "the file": agent_file()}.items():
        tree = ast.parse(text, name, feature_version=(3, 6))
        newer = ast.NamedExpr | ast.Match | ast.AsyncFunctionDef
        assert not [node for node in ast.walk(tree) if isinstance(node, newer)], name


def test_the_file_has_each_module_as_it_is() -> None:
    """Byte for byte, so that the line numbers are those of the modules; no text ends early at quotes of its own."""
    carried = {
        target.slice.value: node.value.value
        for node in ast.parse(agent_file()).body
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        for target in node.targets
        if isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant) and node.value.value
    }
    assert agent_file().startswith(MODULES["modules"])
    expected = {f"{agent.__name__}.{name}": text for name, text in MODULES.items() if name != "modules"}
    expected[agent.__name__] = expected.pop(f"{agent.__name__}.__init__")
    assert carried == expected


def test_every_module_is_found_in_the_file() -> None:
    imports = "\n".join(
        f"import {agent.__name__}.{name}" for name in sorted(MODULES) if name not in {"modules", "__init__"}
    )
    said = run(with_end(imports + LOADED))
    assert f"{agent.__name__}.results" in said.split()


GIVEN = {
    "host": "127.0.0.1", "port": 9, "fingerprint": "ab", "batch": "b", "lease": 60.0, "end_margin": 10.0,
    "walltime": None, "token": "a-token", "token_file": None, "array_index_variable": None, "job_id_variable": None,
    "await_suspended": False,
}  # fmt: skip
DIAL = f"""
from {agent.__name__}.holding import Agent, Settings
agent = Agent(Settings({GIVEN!r}, {{}}))
agent._dial(0)
"""
WAIT = f"""
from {agent.__name__} import holding
holding.PREPARE = 0
agent._on_welcome({{"lease": 60, "heartbeat": 30}})
agent.timers.run()
"""


def test_a_processor_is_held_without_what_tasks_need() -> None:
    """Five thousand placeholders pay for every import: nothing heavy comes in by the back door."""
    loaded = set(run(with_end(DIAL + LOADED)).split())
    ours = {name.rpartition(".")[2] for name in loaded if name.startswith(agent.__name__ + ".")}
    assert ours == {"holding", "connection", "node"}
    heavy = {
        "asyncio",
        "typing",
        "tempfile",
        "shutil",
        "logging",
        "email",
        "http",
        "random",
        "subprocess",
        "contextlib",
    }
    assert not (heavy | {"importlib", "heapq", "encodings.idna"}) & loaded


def test_tasks_are_prepared_for_while_there_is_nothing_else_to_do() -> None:
    """So the first starts at once in what has been held for a while."""
    loaded = run(with_end(DIAL + WAIT + LOADED)).split()
    assert {f"{agent.__name__}.task", f"{agent.__name__}.processes"} <= set(loaded)


def test_a_traceback_names_module_and_line() -> None:
    """As a defect on a node is told: with the file in koala-adapter and the line in it."""
    started = f"from {agent.__name__}.node import Settings\nSettings({{}}, {{}})\n"
    lines = MODULES["node"].splitlines()
    number, line = next((number, line) for number, line in enumerate(lines, 1) if 'given["host"]' in line)
    place = f'File "koala_adapter/vjm/agent/node.py", line {number}, in __init__'
    said = run(with_end(started))
    assert place in said
    assert said.endswith("KeyError: 'host'\n")
    printed = (
        "import traceback\ntry:\n    "
        + started.replace("\n", "\n    ")
        + "pass\nexcept KeyError:\n    traceback.print_exc()\n"
    )
    assert f"{place}\n    {line.strip()}\n" in run(with_end(printed))


# The benchmark of many agents: no agent is lost for good.

ROOT = Path(__file__).parents[3]


def test_an_agent_that_was_dropped_comes_again(tmp_path: Path) -> None:
    """A server that closes a connection before its welcome is asked again: it waits for all agents."""
    context = server_context(load_or_create(tmp_path))
    command = [sys.executable, "-m", "benchmarks.agents", "client", "--indices", "1:2", "--port"]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen([*command, str(listener.getsockname()[1])], cwd=ROOT, stdin=subprocess.DEVNULL) as process,
    ):
        try:
            listener.settimeout(60)
            first, _ = listener.accept()
            first.close()
            second, _ = listener.accept()
            second.settimeout(60)
            with context.wrap_socket(second, server_side=True) as tls:
                assert b"hello" in tls.recv(65536).lower()
                tls.send(channel.encode(channel.Welcome(lease=600, heartbeat=30)))
            assert process.wait(60) == 0
        finally:
            process.kill()
