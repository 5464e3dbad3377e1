# SPDX-License-Identifier: Apache-2.0
"""Estimates pi from random points, on as many processors as the scheduler gave. Needs Python 3.6 on the nodes."""

import os
import random
import sys

POINTS = int(sys.argv[1])
RANK = int(os.environ["KOALA_RANK"])
SIZE = int(os.environ["KOALA_SIZE"])

# The work is divided by the size that the job got; the seed is the rank, so a run can be repeated.
share = POINTS // SIZE + (1 if POINTS % SIZE > RANK else 0)
source = random.Random(RANK)
inside = sum(1 for _ in range(share) if source.random() ** 2 + source.random() ** 2 < 1)
print(f"rank {RANK} of {SIZE}: {inside} of {share} points, pi is about {4 * inside / share:.4f}")
