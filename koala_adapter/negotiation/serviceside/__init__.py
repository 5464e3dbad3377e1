# SPDX-License-Identifier: Apache-2.0
"""Negotiation of processors and memory between resource management and one application, by templates in XML."""
