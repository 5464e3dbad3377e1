# SPDX-License-Identifier: Apache-2.0
"""The order of one cluster's own queue: the policies that rank and backfill its jobs. Pure."""
