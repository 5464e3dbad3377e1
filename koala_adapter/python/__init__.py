# SPDX-License-Identifier: Apache-2.0
"""What ``import koala_adapter as koala`` offers to programs: jobs, sites, handles on jobs, and their results."""
