# SPDX-License-Identifier: Apache-2.0
"""Runners: each follows one job, from the launch into its held placeholders to the end of its processes.

``runner`` defines the interface and the runner of plain processes; the other modules have a runner each for workers and
sweeps, processes that change in step, and MPI. The service chooses the runner of a job by its ``RunnerName`` and
launcher.
"""
