# SPDX-License-Identifier: Apache-2.0
"""Tests of the way by which work is pulled."""
