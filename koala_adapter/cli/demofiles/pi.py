# SPDX-License-Identifier: Apache-2.0
"""Computes pi: each rank integrates its share of 4 / (1 + x * x) and sends it to rank 0, which adds them up."""

import os
import socket
import sys
import time

STEPS = 1200000
rank, size = int(os.environ["KOALA_RANK"]), int(os.environ["KOALA_SIZE"])
first = (os.environ["KOALA_ADDRESSES"].split(",")[0], int(os.environ["PORT"]))

if rank == 0:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(first)
    listener.listen(size)

part = sum(4 / (1 + ((i + 0.5) / STEPS) ** 2) for i in range(rank, STEPS, size)) / STEPS
time.sleep(1)
print(f"rank {rank} of {size} on cluster {os.environ['KOALA_CLUSTER']:5} has {part:.10f}", flush=True)

if rank == 0:
    for _ in range(size - 1):
        connection, _ = listener.accept()
        part += float(connection.makefile().read())
    time.sleep(0.5)
    print(f"the sum of all {size} parts is pi = {part:.10f}", flush=True)
else:
    for _ in range(600):
        try:
            with socket.create_connection(first, timeout=5) as connection:
                connection.sendall(repr(part).encode())
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("rank 0 does not answer")
