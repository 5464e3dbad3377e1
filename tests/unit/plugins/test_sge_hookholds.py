# SPDX-License-Identifier: Apache-2.0
"""Whose hold a job of Grid Engine is in, by its context."""

from __future__ import annotations

from koala_sge.hookholds import held_by_users

SHOWN = """\
==============================================================
job_number:                 7
owner:                      me
context:                    a=1,koala_user_hold=1
job_name:                   x koala_user_hold
==============================================================
job_number:                 8
context:                    b=koala_user_hold
==============================================================
job_number:                 9
env_list:                   A=koala_user_hold=1
"""


def test_only_the_context_says_whose_hold_it_is() -> None:
    """A value or another attribute with the same word says nothing."""
    assert held_by_users(SHOWN) == {"7"}
    assert held_by_users("") == frozenset()
