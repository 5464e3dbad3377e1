# SPDX-License-Identifier: Apache-2.0
"""Task servers, and the programs on nodes that pull tasks from them: sweeps, and workers of ``koala.Executor``.

``server`` (the door) hands out tasks, ``sweep`` is the ledger of the tasks of a sweep. ``launcher`` and ``connection``
travel to the nodes: they are for Python 3.6 or newer and use the standard library only.
"""
