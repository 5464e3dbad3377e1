# SPDX-License-Identifier: Apache-2.0
"""``koala web``: pages on clusters and jobs for a browser, made by a client of the service.

``access.py`` decides who may see them, ``pages.py`` has what is on them, and ``server.py`` serves them.
"""
