"""Asking the API of a lab: what the commands need to know of it."""

import http.client
from collections.abc import Mapping, Sequence

import msgspec

from kproxy_ipt.errors import SourceError
from kproxy_ipt.lab.documents import ApiObject, objects_in
from kproxy_ipt.lab.layout import Layout
from kproxy_ipt.lab.resources import target_for
from kproxy_ipt.lab.state import LabState, is_alive, read_state
from kproxy_ipt.testing.api_store import Target

_TIMEOUT_S = 10.0
_HOST = "127.0.0.1"


class LabClient:
    """The API of a lab that runs."""

    def __init__(self, port: int) -> None:
        self._port = port

    def objects(self, kind: str) -> list[ApiObject]:
        """
        All objects of a kind; they lack `kind` and `apiVersion`.

        Raises:
            SourceError: The API does not answer.
        """
        return list(objects_in(self.ask("GET", target_for(kind).collection), "items"))

    def ask(
        self, method: str, path: str, body: Mapping[str, object] | None = None, content_type: str = ""
    ) -> ApiObject:
        """
        Send one request.

        Raises:
            SourceError: The API does not answer, or refuses.
        """
        connection = http.client.HTTPConnection(_HOST, self._port, timeout=_TIMEOUT_S)
        try:
            headers = {"Content-Type": content_type or "application/json", "Accept": "application/json"}
            connection.request(method, path, None if body is None else msgspec.json.encode(body), headers)
            answer = connection.getresponse()
            document: dict[str, object] = msgspec.json.decode(answer.read(), type=dict[str, object])
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            raise SourceError(f"the API of the lab does not answer: {error}") from error
        finally:
            connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            raise SourceError(str(document.get("message", answer.status)))
        return document


def path_of(target: Target) -> str:
    """The path of an object."""
    root, _, plural = target.collection.rpartition("/")
    namespaces: Sequence[str] = ("namespaces", target.namespace) if target.namespace else ()
    return "/".join([root, *namespaces, plural, target.name])


def running_state(layout: Layout) -> LabState:
    """
    The state of a lab that runs.

    Raises:
        SourceError: It does not.
    """
    state = read_state(layout)
    if state is None:
        raise SourceError(f"there is no lab {layout.name}: kproxy-ipt lab up makes one")
    if not is_alive(layout, state) or not state.port:
        raise SourceError(f"the lab {layout.name} is dead: kproxy-ipt lab up makes it anew, lab down removes the rest")
    return state


def client_of(layout: Layout) -> LabClient:
    """
    Someone who can ask the API of a lab.

    Raises:
        SourceError: The lab does not run.
    """
    return LabClient(running_state(layout).port)
