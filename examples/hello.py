# SPDX-License-Identifier: Apache-2.0
"""Says from where each rank greets: the smallest program for koala. Needs Python 3.6 on the nodes."""

import os
import socket

rank, size, component = (os.environ[name] for name in ("KOALA_RANK", "KOALA_SIZE", "KOALA_COMPONENT"))
print(f"hello from rank {rank} of {size}, component {component}, host {socket.gethostname()}")
