# SPDX-License-Identifier: Apache-2.0
"""What ``koala init`` does: finds the batch systems of this host, tries them, and makes a site file of those."""
