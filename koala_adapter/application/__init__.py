# SPDX-License-Identifier: Apache-2.0
"""The application library: what a program is linked with that changes its size while it runs, and how it is shipped."""
