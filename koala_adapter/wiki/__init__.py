# SPDX-License-Identifier: Apache-2.0
"""The WIKI protocol between a scheduler (Maui, Moab, koala) and a resource manager, both sides.

``codec`` turns bytes into messages and back. ``server`` makes a batch system, or all of koala, a resource manager that
a WIKI scheduler can use; ``client`` asks a resource manager.
"""
