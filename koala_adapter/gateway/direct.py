# SPDX-License-Identifier: Apache-2.0
"""Contents of files on their way from one site to another, without koala's own host between them.

One of the two gateways listens for one connection, and the other one dials it; either may be the one that sends. The
one that listens has a key and a certificate that koala has made for this transfer, and the other one knows it by that.
The one that dials then shows a secret. Both have come by the ssh connections to the two sites. Each transfer has a
thread of its own, and leaves nothing that listens. Python 3.6 or newer.
"""

import errno
import hashlib
import hmac
import os
import queue
import selectors
import socket
import stat
import threading
import time

from koala_adapter.gateway.agents import bind_within
from koala_adapter.gateway.cache import BLOCK, Arrival
from koala_adapter.gateway.files import absolute, unnamed_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ssl
    from typing import IO, Any, Callable, Dict, Iterator, List, Optional, Tuple, Union

GREETING = 10.0
"""Seconds for a peer to show the secret, and for all addresses of a peer to be tried."""
STALL = 30.0
"""Seconds without a byte after which a transfer is given up."""
MOST_STRANGERS = 8
"""Connections at once that have not shown the secret yet; further ones are closed."""
MOST_ADDRESSES = 8
MOST_PASSAGES = 32
"""Transfers at once: each has a thread, and some MiB of memory."""
AGAIN_PAUSE = 0.02
"""Seconds before the next connection is accepted after one could not be."""
LET_GO = 5.0
"""Seconds for another transfer of the same content to end."""
TELL = 0.5
"""Seconds between two reports on how much has come."""
RECORD = 64 * 1024
"""Bytes that are taken from a connection at once: a record of TLS has fewer."""
TRIAL_SECONDS = 1.0
"""Seconds after which no more is sent to measure the bandwidth."""
MOST_DIGESTS = 1000
TLS12_CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"


# -- What is sent and what becomes of it ---------------------------------------------------------------------------


def open_content(path: str) -> "IO[bytes]":
    """Open a regular file for reading. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", path)
    return os.fdopen(descriptor, "rb", buffering=0)


KNOWN_DIGESTS: "Dict[Tuple[int, ...], str]" = {}
"""Digests of files by what tells a file from a changed one, so that a large one is read once."""


READING = threading.Lock()


def digest_of(request: "Dict[str, Any]") -> "Dict[str, Any]":
    """Return SHA-256 and size of the content of a file. One file is read at a time. Raises OSError."""
    with READING, open_content(absolute(request)) as file:
        found = os.fstat(file.fileno())
        identity = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        if identity not in KNOWN_DIGESTS:
            digest, size = hashlib.sha256(), 0
            for data in iter(lambda: file.read(BLOCK), b""):
                digest.update(data)
                size += len(data)
            if size != found.st_size:
                raise OSError(errno.ESTALE, "it changes while it is read", file.name)
            while len(KNOWN_DIGESTS) >= MOST_DIGESTS:
                del KNOWN_DIGESTS[next(iter(KNOWN_DIGESTS))]
            KNOWN_DIGESTS[identity] = digest.hexdigest()
        return {"digest": KNOWN_DIGESTS[identity], "size": found.st_size}


class FileSender:
    """Sends a file from an offset on."""

    def __init__(self, request: "Dict[str, Any]") -> None:
        """Open the file. Raises OSError, also where it does not have the size that was said."""
        self._left = request["size"] - request["offset"]
        self._file = open_content(absolute(request))
        if os.fstat(self._file.fileno()).st_size != request["size"]:
            self.close()
            raise OSError(errno.ESTALE, "it has another size than was said", absolute(request))
        self._file.seek(request["offset"])

    def move(self, connection: "ssl.SSLSocket") -> "Dict[str, Any]":
        """Send all of it and wait until the peer has it."""
        while self._left:
            data = self._file.read(min(BLOCK, self._left))
            if not data:
                raise OSError(errno.ESTALE, "it has become shorter")
            connection.sendall(data)
            self._left -= len(data)
        wait_for_end(connection)
        return {}

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TrialSender:
    """Sends some bytes that no compression makes shorter, to measure the bandwidth."""

    def __init__(self, request: "Dict[str, Any]") -> None:
        self._left = request["size"]

    def move(self, connection: "ssl.SSLSocket") -> "Dict[str, Any]":
        """Send until it is enough, by number or by time."""
        until = time.monotonic() + TRIAL_SECONDS
        while self._left > 0 and time.monotonic() < until:
            connection.sendall(os.urandom(min(RECORD, self._left)))
            self._left -= RECORD
        wait_for_end(connection)
        return {}

    def close(self) -> None:
        """Do nothing: it has nothing open."""


def wait_for_end(connection: "ssl.SSLSocket") -> None:
    """Say that nothing more is sent, and wait until the peer has closed the connection."""
    connection.shutdown(socket.SHUT_WR)
    while connection.recv(4096):
        pass


def received(connection: "ssl.SSLSocket", most: int) -> bytes:
    """Return bytes of the peer; none: it sends no more. Raises ConnectionResetError: files have other errors."""
    try:
        return connection.recv(most)
    except OSError as error:
        raise ConnectionResetError(errno.ECONNRESET, "the connection is lost: {}".format(error)) from error


def begun_arrival(request: "Dict[str, Any]") -> Arrival:
    """Return a content that goes on where it was. Raises OSError.

    A transfer of it that was given up just now may take a moment to let go of it.
    """
    until = time.monotonic() + LET_GO
    while True:
        arrival = Arrival(request)
        try:
            arrival.begin()
        except OSError as error:
            arrival.close()
            if not isinstance(error, BlockingIOError) or time.monotonic() > until:
                raise
            time.sleep(AGAIN_PAUSE)
        else:
            return arrival


class Receiver:
    """Takes in what the peer sends: a content for the cache, or bytes that measure the bandwidth."""

    def __init__(self, request: "Dict[str, Any]", tell: "Callable[[Dict[str, Any]], None]") -> None:
        """Get ready to write. Raises OSError. ``tell``: called with how much has come."""
        self._tell = tell
        self._arrival: "Optional[Arrival]" = None
        self._left = request["size"]
        if not request["trial"]:
            self._left -= request["offset"]
            self._arrival = begun_arrival(request)

    def move(self, connection: "ssl.SSLSocket") -> "Dict[str, Any]":
        """Take in all of it. Raises OSError, also for a content with another digest than was said."""
        came = unwritten = 0
        began = told = time.monotonic()
        while came < self._left:
            data = received(connection, min(RECORD, self._left - came))
            if not data:
                break
            if not came:
                began = time.monotonic()  # the peer may have had to wait for its file system
            came += len(data)
            if self._arrival is None:
                continue
            self._arrival.take(data)
            unwritten += len(data)
            if unwritten >= BLOCK:
                self._arrival.write()
                unwritten = 0
            if time.monotonic() - told >= TELL:
                told = time.monotonic()
                self._tell({"came": came})
        seconds = time.monotonic() - began
        if self._arrival is not None:
            self._arrival.write()
            if came < self._left:
                raise ConnectionResetError(errno.ECONNRESET, "the other site has ended the transfer")
            self._arrival.end()
        return {"came": came, "seconds": seconds}

    def close(self) -> None:
        """Let go of the content: what has come of it stays."""
        if self._arrival is not None:
            self._arrival.close()


# -- The connection ------------------------------------------------------------------------------------------------


def own_addresses() -> "List[str]":
    """Return the addresses of this host that another one could reach, that of the login first."""
    found = os.environ.get("SSH_CONNECTION", "").split()[2:3]
    before = ""
    try:
        with open("/proc/net/fib_trie") as file:
            for line in file:
                if "/32 host LOCAL" in line:
                    found.append(before.rsplit(maxsplit=1)[-1])
                before = line
        with open("/proc/net/if_inet6") as file:
            for line in file:
                digits, _, _, scope = line.split()[:4]
                if scope == "00":
                    found.append(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(digits)))
    except (OSError, ValueError, IndexError):
        pass  # those that were found
    usable = [one for one in found if one[0] in "0123456789abcdef" and not one.startswith(("127.", "169.254."))]
    return sorted(set(usable), key=usable.index)[:MOST_ADDRESSES]


def listening_socket(ports: "Tuple[int, int]") -> socket.socket:
    """Return a socket that listens at a free port of a range, at all addresses. Raises OSError."""
    for family, address in ((socket.AF_INET6, "::"), (socket.AF_INET, "")):
        listener = None
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bind_within(listener, (address, 0), ports)
            listener.listen(MOST_STRANGERS)
        except OSError:
            if listener is not None:
                listener.close()
            if family == socket.AF_INET:
                raise
        else:
            return listener
    raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))


def tls_context(*, listens: bool) -> "ssl.SSLContext":
    """Return the settings of either side: TLS 1.3, or 1.2 with forward secrecy."""
    import ssl  # noqa: PLC0415 - most gateways never need it, and a Python without it can do all else

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if listens else ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers(TLS12_CIPHERS)
    if hasattr(context, "minimum_version"):
        context.minimum_version = ssl.TLSVersion.TLSv1_2
    else:
        context.options |= ssl.OP_NO_SSLv2 | ssl.OP_NO_SSLv3 | ssl.OP_NO_TLSv1 | ssl.OP_NO_TLSv1_1
    if not listens:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the certificate itself is compared
    return context


def connected(addresses: "List[str]", port: int, until: float) -> "Iterator[Tuple[socket.socket, float]]":
    """Yield connections to a port of a host, tried at all of its addresses at once, and the seconds that each took."""
    with selectors.DefaultSelector() as selector:
        began = {}
        try:
            for address in addresses[:MOST_ADDRESSES]:
                try:
                    family, kind, _, _, place = socket.getaddrinfo(address, port, 0, socket.SOCK_STREAM)[0]
                    one = socket.socket(family, kind)
                    one.setblocking(False)  # noqa: FBT003 - the library's own way
                    began[one] = time.monotonic()
                    if one.connect_ex(place) not in (0, errno.EINPROGRESS):
                        del began[one]
                        one.close()
                        continue
                    selector.register(one, selectors.EVENT_WRITE)
                except OSError:
                    pass  # such as an address of a kind that this host has not
            while began and time.monotonic() < until:
                for key, _ in selector.select(max(0.0, until - time.monotonic())):
                    found = key.fileobj
                    if not isinstance(found, socket.socket):
                        continue
                    took = time.monotonic() - began.pop(found)
                    selector.unregister(found)
                    if found.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                        found.close()
                    else:
                        yield found, took
        finally:
            for one in began:
                one.close()


def end_socket(one: socket.socket) -> None:
    """End a connection, or the listening at a port, although other descriptors of it are open."""
    try:
        one.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it is not connected any more
    one.close()


class Passage:
    """One transfer. :meth:`run` is called in a thread of its own, :meth:`stop` in any other one."""

    def __init__(self, request: "Dict[str, Any]", tell: "Callable[[Dict[str, Any]], None]") -> None:
        """``tell``: called in the thread with what is to be known before the end."""
        self._request = request
        self._tell = tell
        self._lock = threading.Lock()
        self._stopped = False
        self._sockets: "List[socket.socket]" = []
        """Second descriptors of those that may be waited for: the first may be closed by its thread at any time."""
        self._proven: "queue.Queue[ssl.SSLSocket]" = queue.Queue()
        self._strangers = 0

    def run(self) -> "Dict[str, Any]":
        """Carry out the transfer and return its figures. Raises OSError."""
        request, mover = self._request, None
        try:
            mover = self._mover()
            connection, latency = self._listen() if request["listens"] else self._dial()
            try:
                connection.settimeout(STALL)
                return dict(mover.move(connection), latency=latency)
            finally:
                connection.close()
        finally:
            if mover is not None:
                mover.close()
            self.stop()

    def stop(self) -> None:
        """End the transfer, whatever its state."""
        with self._lock:
            self._stopped = True
            sockets, self._sockets = self._sockets, []
        for one in sockets:
            end_socket(one)

    def _mover(self) -> "Union[FileSender, TrialSender, Receiver]":
        if not self._request["sends"]:
            return Receiver(self._request, self._tell)
        return TrialSender(self._request) if self._request["trial"] else FileSender(self._request)

    def _keep(self, one: socket.socket) -> socket.socket:
        """Have a socket ended when the transfer is to end, and return its second descriptor. Raises OSError."""
        with self._lock:
            if self._stopped:
                raise OSError(errno.ECANCELED, os.strerror(errno.ECANCELED))
            self._sockets.append(one.dup())
            return self._sockets[-1]

    def _listen(self) -> "Tuple[ssl.SSLSocket, Optional[float]]":
        """Return the connection of the peer that has shown the secret. Raises OSError."""
        until = time.monotonic() + float(self._request["seconds"])
        context = tls_context(listens=True)
        with unnamed_file() as file:
            file.write(self._request["certificate"].encode("ascii"))
            file.flush()
            context.load_cert_chain("/proc/self/fd/{}".format(file.fileno()))
        listener = listening_socket(self._request["ports"])
        try:
            self._keep(listener)
            self._tell({"addresses": own_addresses(), "port": listener.getsockname()[1]})
            while self._proven.empty() and not self._stopped and time.monotonic() < until:
                listener.settimeout(max(0.01, until - time.monotonic()))
                try:
                    peer, _ = listener.accept()
                except OSError:
                    # It is ended by the thread that has found the peer, by :meth:`stop`, or by time. Or there are no
                    # more descriptors, which would be told of at once again.
                    time.sleep(AGAIN_PAUSE)
                    continue
                with self._lock:
                    self._strangers += 1
                    surplus = self._strangers > MOST_STRANGERS
                if surplus:
                    self._dismiss(peer, None)
                else:
                    threading.Thread(target=self._greet, args=(context, peer, listener), daemon=True).start()
        finally:
            listener.close()
        try:
            return self._proven.get_nowait(), None
        except queue.Empty:
            raise OSError(errno.EHOSTUNREACH, "the other site has not connected") from None

    def _greet(self, context: "ssl.SSLContext", peer: socket.socket, listener: socket.socket) -> None:
        """Find out whether a connected peer knows the secret of the transfer."""
        secret, said, until = self._request["secret"].encode("ascii"), b"", time.monotonic() + GREETING
        tls = kept = None
        try:
            kept = self._keep(peer)
            peer.settimeout(GREETING)
            tls = context.wrap_socket(peer, server_side=True)
            while len(said) < len(secret):
                tls.settimeout(max(0.01, until - time.monotonic()))
                piece = tls.recv(len(secret) - len(said))
                if not piece:
                    raise ConnectionResetError
                said += piece
            if not hmac.compare_digest(said, secret):
                raise PermissionError
        except (OSError, ValueError):
            self._dismiss(tls or peer, kept)
            return
        self._proven.put(tls)
        try:
            listener.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # another one was faster

    def _dismiss(self, peer: socket.socket, kept: "Optional[socket.socket]") -> None:
        with self._lock:
            self._strangers -= 1
            if kept in self._sockets:
                self._sockets.remove(kept)
        peer.close()
        if kept is not None:
            end_socket(kept)

    def _dial(self) -> "Tuple[ssl.SSLSocket, Optional[float]]":
        """Return the connection to the peer, and the seconds of a round trip. Raises OSError."""
        request, context = self._request, tls_context(listens=False)
        addresses = [str(one) for one in request["addresses"]]
        for one, took in connected(addresses, int(request["port"]), time.monotonic() + GREETING):
            try:
                self._keep(one)
                one.settimeout(GREETING)
                tls = context.wrap_socket(one)
                if hashlib.sha256(tls.getpeercert(True) or b"").hexdigest() != request["fingerprint"]:  # noqa: FBT003
                    raise PermissionError(errno.EPERM, "something else listens there")
                tls.sendall(request["secret"].encode("ascii"))
            except (OSError, ValueError):
                one.close()
            else:
                return tls, took
        raise OSError(errno.EHOSTUNREACH, "it cannot be reached at {}".format(", ".join(addresses)[:500]))
