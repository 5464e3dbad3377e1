# SPDX-License-Identifier: Apache-2.0
"""Stand-ins for batch systems, for machines that have none."""
