# SPDX-License-Identifier: Apache-2.0
"""One batch system as all see it who work with it: what it lists, who looks, and which starts are on record."""
