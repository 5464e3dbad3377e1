# SPDX-License-Identifier: Apache-2.0
"""Tests of what goes over wires: bytes and recorded outputs in, messages and values out."""
