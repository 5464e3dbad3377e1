# SPDX-License-Identifier: Apache-2.0
"""How programs on nodes pull work from a process elsewhere: for the workers of koala.Executor, and those of sweeps."""
