# SPDX-License-Identifier: Apache-2.0
"""Drives the scheduler, live or simulated: the event loop, the effector of its actions, the recovery from defects."""
