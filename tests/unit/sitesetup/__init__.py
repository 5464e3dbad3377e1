# SPDX-License-Identifier: Apache-2.0
"""How batch systems are found, tried and written down."""
