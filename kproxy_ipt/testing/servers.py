"""
Servers that answer every question with their own name and the peer that they saw.

One thread with one selector serves all sockets of a lab, whatever namespace they were made in. A stream server answers
each time it is asked, so that an open session can be asked again after rules have changed; a UDP server answers each
datagram. An answer is one line, `name address port`: the whole protocol, also for a person with netcat.
"""

import queue
import selectors
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Self

from kproxy_ipt.addresses import family_of
from kproxy_ipt.kernel.netns import inside
from kproxy_ipt.testing.sockets import CHUNK, Protocol, make_socket

_BACKLOG = 4096
_RECEIVE_BUFFER = 4 << 20
_STOP_TIMEOUT_S = 10.0

Task = Callable[[], None]


def _answer(name: str, peer: tuple[str, int]) -> bytes:
    return f"{name} {peer[0]} {peer[1]}\n".encode()


@dataclass(eq=False)
class Server:
    """
    One name that answers on one port; made by `Responders.serve`.

    Attributes:
        name: The word that it answers with.
        port: The port, the same for all its addresses.
        protocol: `tcp`, `udp` or `sctp`.
    """

    name: str
    port: int
    protocol: Protocol
    _responders: "Responders"
    _sockets: set[socket.socket] = field(default_factory=set)

    def listen(self, listeners: Sequence[socket.socket]) -> None:
        """Begin to answer on bound sockets; `Responders.serve` calls it in its thread."""
        for listener in listeners:
            self._sockets.add(listener)
            ready = self._answer_datagrams if self.protocol == "udp" else self._accept
            self._responders.watch(listener, partial(ready, listener))

    def stop(self) -> None:
        """Stop answering: the port is closed and open sessions are cut. A second call changes nothing."""
        self._responders.run(self._close_all)

    def _close_all(self) -> None:
        for each in tuple(self._sockets):
            self._forget(each)

    def _forget(self, each: socket.socket) -> None:
        if each in self._sockets:
            self._sockets.remove(each)
            self._responders.unwatch(each)
            each.close()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(BlockingIOError, ConnectionError):
            while True:
                session, peer = listener.accept()
                session.setblocking(False)
                self._sockets.add(session)
                self._responders.watch(session, partial(self._answer_session, session, peer))
                self._answer_session(session, peer)

    def _answer_session(self, session: socket.socket, peer: tuple[str, int]) -> None:
        try:
            asked = session.recv(CHUNK)
            if asked:
                session.sendall(_answer(self.name, peer))
            else:
                self._forget(session)
        except BlockingIOError:
            return
        except OSError:
            self._forget(session)

    def _answer_datagrams(self, listener: socket.socket) -> None:
        # An error of an earlier answer (its sender is gone) is reported here: it must not end the server.
        with suppress(OSError):
            while True:
                _, peer = listener.recvfrom(CHUNK)
                listener.sendto(_answer(self.name, peer), peer)


class Responders:
    """
    The thread in which the servers of a lab answer; a context manager.

    All sockets are touched by that thread alone, so that nothing is locked. At the end every server is stopped.
    """

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._tasks: queue.SimpleQueue[tuple[Task, threading.Event]] = queue.SimpleQueue()
        self._bell, self._button = socket.socketpair()
        self._servers: list[Server] = []
        self._running = True
        self._thread = threading.Thread(target=self._loop, name="responders", daemon=True)

    def __enter__(self) -> Self:
        self._bell.setblocking(False)
        self._selector.register(self._bell, selectors.EVENT_READ, self._run_tasks)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all servers and end the thread."""
        for server in self._servers:
            server.stop()
        self.run(self._finish)
        self._thread.join(_STOP_TIMEOUT_S)
        self._selector.close()
        self._bell.close()
        self._button.close()

    def serve(self, netns: str, name: str, port: int, *, protocol: Protocol, addresses: Sequence[str]) -> Server:
        """
        Let *name* answer in a namespace.

        Args:
            netns: Name of the network namespace.
            name: The word of the answers, without white space.
            port: 1 to 65535.
            protocol: For SCTP see `kproxy_ipt.testing.sockets.sctp_available`.
            addresses: Where to answer; the wildcards `0.0.0.0` and `::` are fine where the namespace has one address.

        Raises:
            NamespaceError: The namespace cannot be entered.
            OSError: An address is not there, a port is taken, or the protocol is missing.
        """
        server = Server(name, port, protocol, self)
        listeners: list[socket.socket] = []
        try:
            with inside(netns):
                for address in addresses:
                    listeners.append(make_socket(family_of(address), protocol))
                    _bind(listeners[-1], address, port, protocol)
        except BaseException:
            for listener in listeners:
                listener.close()
            raise
        self._servers.append(server)
        self.run(partial(server.listen, listeners))
        return server

    def run(self, task: Task) -> None:
        """Run *task* in the thread of the servers and wait for its end."""
        if not self._thread.is_alive():
            return
        done = threading.Event()
        self._tasks.put((task, done))
        self._button.send(b"!")
        done.wait(_STOP_TIMEOUT_S)

    def watch(self, each: socket.socket, ready: Task) -> None:
        """Call *ready* whenever *each* can be read; only from the thread of the servers."""
        self._selector.register(each, selectors.EVENT_READ, ready)

    def unwatch(self, each: socket.socket) -> None:
        """End `watch`; only from the thread of the servers."""
        self._selector.unregister(each)

    def _finish(self) -> None:
        self._running = False

    def _loop(self) -> None:
        while self._running:
            for key, _ in self._selector.select():
                # A socket that was closed in the same turn has no key any more, or its number belongs to a newer one.
                if self._selector.get_map().get(key.fd) is key:
                    key.data()

    def _run_tasks(self) -> None:
        with suppress(BlockingIOError):
            self._bell.recv(CHUNK)
        with suppress(queue.Empty):
            while True:
                task, done = self._tasks.get_nowait()
                try:
                    task()
                finally:
                    done.set()


def _bind(listener: socket.socket, address: str, port: int, protocol: Protocol) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((address, port))
    if protocol == "udp":
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
    else:
        listener.listen(_BACKLOG)
