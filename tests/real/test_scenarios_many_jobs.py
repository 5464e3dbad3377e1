# SPDX-License-Identifier: Apache-2.0
"""More jobs than the clusters can hold: all finish, no threshold is exceeded, and the controllers are spared."""
