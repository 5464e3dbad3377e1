# SPDX-License-Identifier: Apache-2.0
"""What runs: the service, its journal, its clusters, and what stands between them and the scheduler."""
