# SPDX-License-Identifier: Apache-2.0
"""The files of ``koala demo``: a site of three small clusters, a job, its program, and a local user's job."""

from __future__ import annotations

SITE = """\
[control_center]
listen = "127.0.0.1"
lease = 60
heartbeat = 2

[scheduler]
scan_interval = 1
launch_margin = 20
placeholder_life = 300

[[clusters]]
name = "alpha"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ nodes = 2, processors_per_node = 2, idle_seconds = 60 }}

[[clusters]]
name = "beta"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ nodes = 1, processors_per_node = 4, idle_seconds = 60 }}

[[clusters]]
name = "gamma"
plugin = "local"
poll_interval = 0.5
requests_per_minute = 600
output_directory = "{directory}"
settings = {{ nodes = 2, processors_per_node = 2, idle_seconds = 60 }}
"""

JOB = """\
name = "pi"
walltime = "5m"
environment = {{ PORT = "{port}" }}

[[components]]
name = "left"
command = ["python3", "pi.py"]
processors = 3
input_files = ["pi.py"]

[[components]]
name = "middle"
command = ["python3", "pi.py"]
processors = 3
input_files = ["pi.py"]

[[components]]
name = "right"
command = ["python3", "pi.py"]
processors = 2
input_files = ["pi.py"]
"""

PROGRAM = '''\
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
print("rank %d of %d on cluster %-5s has %.10f" % (rank, size, os.environ["KOALA_CLUSTER"], part), flush=True)

if rank == 0:
    for _ in range(size - 1):
        connection, _ = listener.accept()
        part += float(connection.makefile().read())
    time.sleep(0.5)
    print("the sum of all %d parts is pi = %.10f" % (size, part), flush=True)
else:
    for attempt in range(600):
        try:
            with socket.create_connection(first, timeout=5) as connection:
                connection.sendall(repr(part).encode())
            break
        except OSError:
            time.sleep(0.1)
    else:
        sys.exit("rank 0 does not answer")
'''

LOCAL_USER = "#!/bin/sh\nexec sleep {seconds}\n"
