# SPDX-License-Identifier: Apache-2.0
"""One start of a fake command: hands its descriptors, arguments and environment to the resident process.

The file of each command is a copy of this one with the words between @ replaced. It is started thousands of times, so
it imports only what is built in.
"""

import os
import sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

SERVER = "@SERVER@"
SYSTEM = "@SYSTEM@"

connection = socket(AF_UNIX, SOCK_STREAM)
connection.connect(SERVER)
request = repr((SYSTEM, sys.argv, dict(os.environ))).encode("utf-8", "surrogatepass")
descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
connection.sendmsg([len(request).to_bytes(4, "big")], [(SOL_SOCKET, SCM_RIGHTS, descriptors)])
connection.sendall(request)
status = connection.recv(1)
os._exit(status[0] if status else os.EX_SOFTWARE)
