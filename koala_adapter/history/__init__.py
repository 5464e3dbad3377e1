# SPDX-License-Identifier: Apache-2.0
"""Pictures of what has been: when placeholders waited and were used, of a job or of a day."""
