# SPDX-License-Identifier: Apache-2.0
"""The conformance kit: tests that every LRM plugin must pass, for use by the authors of plugins.

The door is :class:`LrmConformance`. The kit needs pytest with anyio's plugin, which ``pip install koala-adapter[test]``
brings; nothing else of koala_adapter imports the kit.
"""

from __future__ import annotations

import pytest

# Before the imports: pytest explains failed assertions only in modules that it rewrites on import.
for _part in ("conformance", "jobs", "submission", "trial"):
    pytest.register_assert_rewrite(f"{__name__}.{_part}")

from koala_adapter.testing.conformance import LrmConformance  # noqa: E402
from koala_adapter.testing.trial import (  # noqa: E402
    Batch,
    LrmUnderTest,
    RecordedCommand,
    RecordingRunner,
    SecretWatcher,
    Trial,
    eventually,
    new_context,
)

__all__ = [
    "Batch",
    "LrmConformance",
    "LrmUnderTest",
    "RecordedCommand",
    "RecordingRunner",
    "SecretWatcher",
    "Trial",
    "eventually",
    "new_context",
]
