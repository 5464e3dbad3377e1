# SPDX-License-Identifier: Apache-2.0
"""What ``import koala_adapter as koala`` offers to programs: jobs, sites, handles, results, and an executor.

The door is :mod:`koala_adapter` itself, which imports these modules on demand.
"""
