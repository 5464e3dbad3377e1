# SPDX-License-Identifier: Apache-2.0
"""Writes a table of squares and a log into files, each rank its own part. Needs Python 3.6 on the nodes."""

import os
from pathlib import Path

NUMBERS = 1000
RANK = int(os.environ["KOALA_RANK"])
SIZE = int(os.environ["KOALA_SIZE"])

numbers = range(RANK, NUMBERS, SIZE)
table = "".join(f"{number},{number * number}\n" for number in numbers)
Path(f"result-{RANK}.csv").write_text(table, encoding="ascii")
Path("logs").mkdir()
Path("logs/squares.txt").write_text(f"rank {RANK} of {SIZE}: {len(numbers)} squares\n", encoding="ascii")
