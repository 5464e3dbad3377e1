# SPDX-License-Identifier: Apache-2.0
"""The WIKI protocol, bytes to messages and back, both dialects and both sides. Pure."""
