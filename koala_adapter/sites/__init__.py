# SPDX-License-Identifier: Apache-2.0
"""Sites: the login nodes of other places, each reached by one connection of the user's own ssh.

``link`` is one connection to a gateway (``koala_adapter.gateway``), as long as it lasts; ``remotesite`` keeps one for
each site, and is the host of a batch system's commands and files for plugins.
"""
