# SPDX-License-Identifier: Apache-2.0
"""Formats that several parts of koala share: typed JSON messages and lists of host names.

The package has no names of its own; import its modules. It imports nothing of koala beside the common values.
"""
