# SPDX-License-Identifier: Apache-2.0
"""The service of one user: it runs the scheduler against real clusters, agents and the clock.

The door is :class:`koala_adapter.service.service.Service`. Around it stand the journal and the kept records, one
driver for each cluster, the control center for agents, running applications with their files and sweeps, and the
commands that remove what is left of old jobs. Changes of size are in :mod:`koala_adapter.service.sizes`.
"""
