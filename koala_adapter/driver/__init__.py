# SPDX-License-Identifier: Apache-2.0
"""What drives the scheduler, live or simulated: the order of things, what carries its wishes out, and its defects."""
