# SPDX-License-Identifier: Apache-2.0
"""The options that the executor adds to Snakemake's command line."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from snakemake_interface_executor_plugins.settings import ExecutorSettingsBase


@dataclass
class ExecutorSettings(ExecutorSettingsBase):
    """Snakemake makes ``--koala-site``, ``--koala-state`` and ``--koala-walltime`` of them."""

    site: Optional[Path] = field(  # noqa: UP045 - Snakemake makes an option of it, and understands no other spelling
        default=None, metadata={"help": "Site file of koala. Default: that of its command line.", "required": False}
    )
    state: Optional[Path] = field(  # noqa: UP045 - Snakemake understands no other spelling
        default=None,
        metadata={"help": "State directory of koala. Default: that of its command line.", "required": False},
    )
    walltime: str = field(
        default="1h",
        metadata={"help": 'Walltime of jobs without the resource runtime, such as "90m".', "required": False},
    )
