# SPDX-License-Identifier: Apache-2.0
"""The evaluations of five published systems, as experiments that one command repeats.

``framework`` says what an experiment is and finds those that are installed; ``commands`` is the door, ``koala
experiment``. The others are the experiments, one or two in a module, and what runs them on live clusters.
"""
