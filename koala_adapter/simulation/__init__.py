# SPDX-License-Identifier: Apache-2.0
"""Simulation: the code that schedules real clusters, run on a virtual clock.

Workloads come from traces or models (``workload``, ``models``), clusters from platform files (``platform``). There are
three simulators: ``replay`` orders the queue of each cluster, ``multicluster`` runs KOALA on counts of processors, and
``placeholders`` runs the whole scheduler on simulated batch systems. The door of ``koala simulate`` is ``comparison``.
"""
