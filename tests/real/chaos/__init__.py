# SPDX-License-Identifier: Apache-2.0
"""Chaos on real batch systems: jobs of random shapes, faults drawn from a seed, and what must hold in the end.

`jobs` and `plan` are pure: what is submitted and what goes wrong when, from a seed alone. `stage` has the batch systems
and the user, and finds what is to be hit, `actors` does the steps of a plan, and `checks` keeps how each job may end
after what happened to it, and looks at everything when all is over.
"""
