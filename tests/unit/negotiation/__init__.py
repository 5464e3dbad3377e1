# SPDX-License-Identifier: Apache-2.0
"""Negotiation: templates, frames, state machine, reservations, and the module for applications."""
