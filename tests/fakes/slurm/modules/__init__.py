# SPDX-License-Identifier: Apache-2.0
"""Modules that helper processes of the plugin ``slurm`` import in place of real ones."""
