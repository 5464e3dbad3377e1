# SPDX-License-Identifier: Apache-2.0
"""The library in C: files that `koala app --install` writes."""
