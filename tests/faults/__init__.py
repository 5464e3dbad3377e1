# SPDX-License-Identifier: Apache-2.0
"""Tests under seeded schedules of faults: lost messages, crashes, stalls and lies."""
