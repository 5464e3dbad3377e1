# SPDX-License-Identifier: Apache-2.0
"""All tests; a package, so that test modules of equal names in different folders do not hide one another."""
