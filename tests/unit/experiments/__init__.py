# SPDX-License-Identifier: Apache-2.0
"""The published evaluations: their models, findings and pages, and workloads that run live."""
