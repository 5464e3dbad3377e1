# SPDX-License-Identifier: Apache-2.0
"""The examples of docs/coming-from.md run as they stand, on two local clusters."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import koala_adapter as koala
from tests.local_koala import LIVENESS

ROOT = Path(__file__).parents[1]
EXAMPLE = re.compile(r"<!-- example: (\w+) -->\n\n```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
EXAMPLES = dict(EXAMPLE.findall((ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")))
PRINTED = {"submitit": "12", "parsl": "Hello World!", "dask": "6", "psij": "COMPLETED"}
NEEDED = {"submitit": "cloudpickle", "parsl": "parsl", "dask": "distributed", "psij": "psij"}


def test_each_example_is_tried() -> None:
    assert EXAMPLES.keys() == PRINTED.keys() == NEEDED.keys()


@pytest.mark.parametrize("name", PRINTED)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    """What it prints is right, and its ranks have the threads, the memory and the queue that it says."""
    if find_spec(NEEDED[name]) is None:  # not imported here: PSI/J looks for its executors once in a process
        pytest.skip(f"missing: {NEEDED[name]}")
    program = tmp_path / "example.py"
    program.write_text(EXAMPLES[name], encoding="utf-8")
    with koala.local_site(["alpha", "beta"], processors=4) as site:
        environment = {
            **os.environ,
            "KOALA_SITE": str(site.file),
            "KOALA_STATE": str(site.directory),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "plugins"), str(ROOT / "plugins/psij-koala/src")]),
        }
        done = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIVENESS * 4,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == PRINTED[name], done.stderr
        (component,) = site.jobs()[-1].report().components
    assert (component.slot.threads, component.slot.memory_mib) == (2, 1024)
    assert component.slot.queue == ("dev" if component.cluster == "alpha" else "")
