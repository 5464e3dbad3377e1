# SPDX-License-Identifier: Apache-2.0
"""Workloads of the simulator on live clusters: applications of a given pace, their submission, what a journal tells."""
