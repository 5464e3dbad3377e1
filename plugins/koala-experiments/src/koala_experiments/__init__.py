# SPDX-License-Identifier: Apache-2.0
"""The evaluations of the five published systems, one module each."""
