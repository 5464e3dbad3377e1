# SPDX-License-Identifier: Apache-2.0
"""Plugin ``drmaa``: any batch system with a DRMAA 1.0 library, through a helper process per cluster."""
