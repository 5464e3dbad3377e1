# SPDX-License-Identifier: Apache-2.0
"""The gateway at a site: a program that is sent over the user's own ssh and serves one koala from the login node.

It runs commands, reads and writes files, and relays the connections of agents, all over its standard input and output.
It needs Python 3.6 or newer and its standard library. ``streams`` is the protocol, used by both sides; ``program`` is
the gateway itself. ``koala_adapter.sites`` is the other side.
"""
