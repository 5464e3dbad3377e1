# SPDX-License-Identifier: Apache-2.0
"""Another user of the same machine learns no secret, reads no output, and cannot speak for the first."""
