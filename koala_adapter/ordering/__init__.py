# SPDX-License-Identifier: Apache-2.0
"""koala as the scheduler of one batch system: keep its queue, decide who starts where, have it started, check that."""
