# SPDX-License-Identifier: Apache-2.0
"""Services of the local machine: clock, private directories, sockets, supervision by systemd, metrics.

The package has no names of its own; import its modules. ``clock``, ``privatedirectory`` and ``sockets`` need the
standard library only, so that clients start quickly; ``accepting``, ``process`` and ``metricsport`` need anyio.
"""
