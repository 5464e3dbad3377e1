# SPDX-License-Identifier: Apache-2.0
"""Every way in which a job can end badly, on real systems: the user learns the true reason, and nothing of it stays."""
