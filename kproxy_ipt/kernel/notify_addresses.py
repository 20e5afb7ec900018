"""
Telling when addresses of interfaces may have changed, so that node ports and local addresses are looked at again.

What is told is a hint, not a difference: IPv6 addresses learnt from a router are announced again with each of its
messages, and each pod that starts brings an interface with a link-local address. The listener compares
`interface_addresses()` with what it knew, which costs one question to the kernel.
"""

from collections.abc import Callable

from kproxy_ipt.kernel.nfnetlink import ROUTE
from kproxy_ipt.kernel.notify import Listener, messages_of

_GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS = 1, 5, 9
_DELETE_LINK, _NEW_ADDRESS, _DELETE_ADDRESS = 17, 20, 21
_TOLD = frozenset({_DELETE_LINK, _NEW_ADDRESS, _DELETE_ADDRESS})
_DATAGRAMS_AT_ONCE = 256


class AddressMonitor:
    """Calls back when an address appears or vanishes, or an interface with all of its addresses."""

    def __init__(self, on_change: Callable[[], None], *, netns: str | None = None) -> None:
        """
        Listen from now on; a loop must be running.

        Args:
            on_change: Called on the loop, once for all that arrived together. Lost messages count as a change.
            netns: See `netns.inside`.

        Raises:
            KernelError: See `Listener`.
        """
        self._on_change = on_change
        self._listener = Listener(ROUTE, (_GROUP_LINK, _GROUP_IPV4_ADDRESS, _GROUP_IPV6_ADDRESS), netns)
        self._listener.start(self._read)

    def close(self) -> None:
        """Stop listening; may be called twice."""
        self._listener.close()

    def _read(self) -> None:
        received = self._listener.receive(_DATAGRAMS_AT_ONCE)
        if received.lost or any(
            message.kind in _TOLD for datagram in received.datagrams for message in messages_of(datagram)
        ):
            self._on_change()
