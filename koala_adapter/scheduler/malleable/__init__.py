# SPDX-License-Identifier: Apache-2.0
"""Running jobs that grow and shrink: policies on counts, and the protocol with placeholders. Pure."""
