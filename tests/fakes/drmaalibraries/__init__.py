# SPDX-License-Identifier: Apache-2.0
"""A directory from which a helper imports ``drmaa``: slurm-drmaa or pbs-drmaa, with what is odd about each."""
