# SPDX-License-Identifier: Apache-2.0
"""How many examples property tests draw: few with all tests, many in the night (``tox run -e properties``).

No time limit for an example and none for drawing it: a machine that is busy with something else is no defect.
"""

from __future__ import annotations

from hypothesis import HealthCheck, settings

PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
DEFAULT_EXAMPLES = 25
NIGHTLY_EXAMPLES = 5000


def register_profiles() -> None:
    """Make the profiles ``default``, which is taken, and ``nightly``, for ``--hypothesis-profile``."""
    settings.register_profile("default", PATIENT, max_examples=DEFAULT_EXAMPLES)
    settings.register_profile("nightly", PATIENT, max_examples=NIGHTLY_EXAMPLES, print_blob=True)
    settings.load_profile("default")


def examples(count: int) -> settings:
    """Return settings for ``count`` examples with all tests, and for as many times more in the night as elsewhere."""
    return settings(max_examples=repeated(count))


def repeated(count: int) -> int:
    """Return how often to do what a test does ``count`` times with all tests, and many times more in the night."""
    return count * settings().max_examples // DEFAULT_EXAMPLES
