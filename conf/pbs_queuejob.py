# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001
"""OpenPBS: every job waits for an outside scheduler; a queuejob hook, after the OpenPBS hooks guide.

Not yet run on a real server: the plugin for PBS is not part of this release. As a manager:

    qmgr -c 'create hook koala_hold event=queuejob'
    qmgr -c 'import hook koala_hold application/x-python default pbs_queuejob.py'

Undo: qmgr -c 'delete hook koala_hold', and qrls what still waits. The scheduler must run as a PBS Operator or Manager.
"""

import pbs

LEAVE_ALONE = ("debug",)  # queues with a scheduler of their own

event = pbs.event()
queue = event.job.queue.name if event.job.queue else ""
if queue not in LEAVE_ALONE:
    # An operator's hold: users can add and release their own, and not this one.
    event.job.Hold_Types = pbs.hold_types("o")
event.accept()
