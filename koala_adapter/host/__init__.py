# SPDX-License-Identifier: Apache-2.0
"""This machine: clocks that nobody sets, directories for secrets."""
