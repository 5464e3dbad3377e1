# SPDX-License-Identifier: Apache-2.0
"""Which component of a job goes to which cluster: the placement policies. Pure."""
