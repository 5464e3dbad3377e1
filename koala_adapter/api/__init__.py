# SPDX-License-Identifier: Apache-2.0
"""The interface between a service and its callers: a Unix socket, and the journal when no service runs.

The door for callers is :mod:`koala_adapter.api.client`, or :mod:`koala_adapter.api.asyncclient` in an event loop; the
service side is :mod:`koala_adapter.api.server`. Other modules own the state directory, make reports, and answer from
the journal.
"""
