# SPDX-License-Identifier: Apache-2.0
"""Placement policies: which component of a job goes to which cluster. Pure.

``policy`` defines what a policy sees and answers, ``policies`` has koala's own. The door is the class
:class:`koala_adapter.scheduler.placement.policy.PlacementPolicy`; the policies by name are in
:mod:`koala_adapter.scheduler.knownpolicies`.
"""
