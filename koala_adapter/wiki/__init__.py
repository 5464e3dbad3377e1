# SPDX-License-Identifier: Apache-2.0
"""The WIKI protocol between a scheduler (Maui, Moab, ours) and a resource manager, both sides."""
