# SPDX-License-Identifier: Apache-2.0
"""Jobs from a real notebook: ipykernel runs its cells, and what it is shown is kept up to date."""

from __future__ import annotations

from typing import Any

import pytest

import koala_adapter as koala
from tests.local_koala import LIVENESS

nbformat: Any = pytest.importorskip("nbformat")
nbclient: Any = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.filterwarnings("ignore"),  # those of Jupyter are not ours
]

CELLS = (
    "import koala_adapter as koala\nsite = koala.Site.load({file!r}, state={state!r})",
    "result = site.run(koala.Job(['echo', 'hello']), show=True)\nprint(result.stdout)",
    "site.job(result.id)",
    "result",
    "handle = await koala.aio.submit(koala.Job(['echo', 'awaited']), site=site)\nprint((await handle.result()).stdout)",
    "site.clusters()[0].name",
)


def test_a_notebook_shows_jobs_as_tables() -> None:
    with koala.local_site() as site:
        given = {"file": str(site.file), "state": str(site.directory)}
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell.format(**given)) for cell in CELLS])
        nbclient.NotebookClient(notebook, timeout=LIVENESS, kernel_name="python3").execute()
    outputs = [cell["outputs"] for cell in notebook["cells"]]
    (shown,) = [one for one in outputs[1] if one["output_type"] == "display_data"]
    assert "echo: <b>completed</b>" in shown["data"]["text/html"]
    assert any(one.get("text") == "hello\n\n" for one in outputs[1])
    for number in (2, 3):
        assert "<table>" in outputs[number][0]["data"]["text/html"]
    assert [one["text"] for one in outputs[4] if one["output_type"] == "stream"] == ["awaited\n\n"]
    assert outputs[5][0]["data"]["text/plain"] == "'alpha'"
