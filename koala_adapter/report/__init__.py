# SPDX-License-Identifier: Apache-2.0
"""The socket between the service and its callers: protocol, server, client, reports, hosting."""
