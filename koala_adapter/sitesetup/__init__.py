# SPDX-License-Identifier: Apache-2.0
"""What ``koala check`` looks at: this host, each cluster, and a placeholder on trial in each."""
