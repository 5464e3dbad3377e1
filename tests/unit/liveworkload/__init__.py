# SPDX-License-Identifier: Apache-2.0
"""Workloads that run live: bags of work, what a journal tells."""
