# SPDX-License-Identifier: Apache-2.0
"""Claiming: how a waiting job gets its processors, from the placement queue to held placeholders. Pure.

``queue`` keeps the waiting jobs in order, ``waiting`` decides which are tried, ``claims`` submits their placeholders
and launches complete jobs, ``exchange`` passes placeholders between jobs. The scheduler calls the handlers of events
and timers of each.
"""
