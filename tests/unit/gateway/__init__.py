# SPDX-License-Identifier: Apache-2.0
"""The protocol of gateways, without any connection."""
