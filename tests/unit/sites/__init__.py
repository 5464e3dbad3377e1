# SPDX-License-Identifier: Apache-2.0
"""Sites that are reached by ssh, with a stand-in for the transport."""
