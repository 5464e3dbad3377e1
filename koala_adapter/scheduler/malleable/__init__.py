# SPDX-License-Identifier: Apache-2.0
"""Malleable jobs: how running jobs grow and shrink. Pure.

``policies`` says who is asked to change, on counts of processors; ``steps`` carries a step of a policy out on one
cluster; ``changes`` follows each change to its end; ``requests`` has the wishes of applications and owners;
``jobmanagement`` is the door: the order of all these decisions after each event.
"""
