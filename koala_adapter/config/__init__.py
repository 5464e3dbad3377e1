# SPDX-License-Identifier: Apache-2.0
"""Site files and job files in, values or refusals out."""
