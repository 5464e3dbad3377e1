# SPDX-License-Identifier: Apache-2.0
"""Replays workloads through the code that schedules for real, on a virtual clock."""
