# SPDX-License-Identifier: Apache-2.0
"""A fake Grid Engine: its commands and its DRMAA library, on a directory, running jobs as processes of this host.

It prints what Grid Engine 8.1.9 printed (tests/wire/samples/sge819) and refuses in its words. One small
process is its qmaster.
"""
