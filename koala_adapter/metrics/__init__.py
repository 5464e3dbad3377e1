# SPDX-License-Identifier: Apache-2.0
"""Numbers that monitoring reads: what is counted, the counting, and how it is told as OpenMetrics."""
