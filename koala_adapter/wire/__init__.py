# SPDX-License-Identifier: Apache-2.0
"""Co-allocation of parallel jobs over unmodified batch systems."""
