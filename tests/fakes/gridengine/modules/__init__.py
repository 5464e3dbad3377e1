# SPDX-License-Identifier: Apache-2.0
"""Directory for PYTHONPATH: what is in here is imported instead of the real drmaa library."""
