# SPDX-License-Identifier: Apache-2.0
"""Directory to put on the module path of a child process that shall find a pyslurm."""
