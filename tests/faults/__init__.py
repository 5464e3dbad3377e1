# SPDX-License-Identifier: Apache-2.0
"""The scheduler in a simulated world in which everything goes wrong, in a repeatable order."""
