# SPDX-License-Identifier: Apache-2.0
"""Tests of the pure parts: no daemon, no network, a few seconds in all."""
