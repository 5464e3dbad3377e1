# SPDX-License-Identifier: Apache-2.0
"""Drivers of the scheduler: the event loop, the effector of its actions, and recovery from a journal.

The door is :class:`koala_adapter.driver.loop.EventLoop`, which owns a scheduler and its journal. The service and the
simulator use the same loop with effectors of their own.
"""
