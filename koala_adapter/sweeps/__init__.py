# SPDX-License-Identifier: Apache-2.0
"""Sweeps: one command with many parameters, each task done once. Pure, but for the launcher, which runs on nodes."""
