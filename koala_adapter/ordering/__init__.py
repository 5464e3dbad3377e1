# SPDX-License-Identifier: Apache-2.0
"""koala as the scheduler of one batch system (``koala schedule``).

It keeps the queue of the batch system, decides which jobs start on which nodes, has them started, and checks that
they did. The door is :class:`koala_adapter.ordering.scheduler.OutsideScheduler`; a batch system that schedules itself
is followed by :class:`koala_adapter.ordering.shadow.Shadow`.
"""
