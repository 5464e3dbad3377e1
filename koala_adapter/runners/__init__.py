# SPDX-License-Identifier: Apache-2.0
"""Runners: each follows one job, from the launch into its held placeholders to the end of its processes."""
