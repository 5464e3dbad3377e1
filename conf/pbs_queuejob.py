# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: INP001
"""OpenPBS: every job waits for an outside scheduler; a queuejob hook.

Seen at work with OpenPBS 23.06: single jobs, arrays, and those of other users. As a manager:

    qmgr -c 'create hook koala_hold event=queuejob'
    qmgr -c 'import hook koala_hold application/x-python default pbs_queuejob.py'

Undo: qmgr -c 'delete hook koala_hold', and `koala schedule --give-back CLUSTER`. The scheduler must run as a PBS
Operator or Manager, and its cluster have operator = true in the site file.
"""

import pbs

LEAVE_ALONE = ("debug",)  # queues with a scheduler of their own

event = pbs.event()
queue = event.job.queue.name if event.job.queue else ""
if queue not in LEAVE_ALONE:
    # An operator's hold: users can add and release their own, and not this one.
    asked = str(event.job.Hold_Types or "")
    event.job.Hold_Types = pbs.hold_types("uo" if "u" in asked else "o")
event.accept()
