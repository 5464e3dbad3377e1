# SPDX-License-Identifier: Apache-2.0
"""Setting up a site: finding clusters on this host, checking them, and trying placeholders in them.

The doors are :func:`koala_adapter.sitesetup.find.search` for ``koala init`` and
:func:`koala_adapter.sitesetup.checks.check_clusters` for ``koala check``.
"""
