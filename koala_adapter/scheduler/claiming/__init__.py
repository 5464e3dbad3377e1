# SPDX-License-Identifier: Apache-2.0
"""From the placement queue to held placeholders, and back: how a job gets its processors. Pure."""
