# SPDX-License-Identifier: Apache-2.0
"""The library in Python, in modules that become one file; standard library of Python 3.6 or newer only."""
