# SPDX-License-Identifier: Apache-2.0
"""Listening and sockets, shared by whoever serves peers."""
