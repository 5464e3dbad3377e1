# SPDX-License-Identifier: Apache-2.0
"""Tells PSI/J of the executor "koala"."""

from packaging.version import Version
from psij.descriptor import Descriptor

__PSI_J_EXECUTORS__ = [
    Descriptor(name="koala", nice_name="koala", version=Version("0.1.0"), cls="koala_psij.executor.KoalaJobExecutor")
]
