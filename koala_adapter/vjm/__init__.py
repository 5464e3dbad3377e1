# SPDX-License-Identifier: Apache-2.0
"""Placeholders from both ends: the control center that agents dial in to, the agent, and the channel between them."""
