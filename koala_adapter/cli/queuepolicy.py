# SPDX-License-Identifier: Apache-2.0
"""The option that names a policy of one cluster's queue: koala's own, or one that is installed."""

from __future__ import annotations

import click

from koala_adapter.policies.definition import PolicyKind
from koala_adapter.policies.entrypoints import policy_names
from koala_adapter.queueing.policies import POLICIES


class QueuePolicy(click.Choice[str]):
    """A choice among koala's own policies, which help texts list, and the installed ones, which they do not."""

    def __init__(self) -> None:
        super().__init__(POLICIES)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name of a policy; fail with all that there are."""
        if value in POLICIES:
            return value
        return str(click.Choice((*POLICIES, *policy_names(PolicyKind.QUEUE))).convert(value, param, ctx))
