# SPDX-License-Identifier: Apache-2.0
"""Tests against real batch systems, brought up for the purpose on this machine."""
