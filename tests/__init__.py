# SPDX-License-Identifier: Apache-2.0
"""All tests; the folders in it are namespace packages."""
