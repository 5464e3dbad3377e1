# SPDX-License-Identifier: Apache-2.0
"""The application library in C: the source files that ``koala app --install`` writes."""
