"""A complete list in pages, over an `ApiSession`: `paging.py` says what to ask next, here it is asked."""

from collections.abc import Awaitable, Callable
from http import HTTPStatus

import msgspec

from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.decode import Decoded, decode_document
from kproxy_ipt.objects.events import ApiObject, Kind
from kproxy_ipt.sources.api_session import ApiSession
from kproxy_ipt.sources.paging import Answer, CompleteList, ListRefusedError, complete_list
from kproxy_ipt.sources.refusals import Resource
from kproxy_ipt.sources.watch_stream import objects_of


class ListedObjects(msgspec.Struct, frozen=True, kw_only=True):
    """What a list holds, what is odd in it, and the version from which a watch goes on ("" if the server has none)."""

    objects: tuple[ApiObject, ...]
    findings: tuple[Finding, ...]
    version: str


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """`metadata` of a list."""

    resource_version: str


class _ListHead(msgspec.Struct, frozen=True):
    """A list of which only the version counts."""

    metadata: _ListMeta


class PagedList:
    """
    The list of one kind.

    Args:
        kind: What is listed.
        resource: The same in the words of the API, with selectors.
        session: Sends requests.
        sleep: Waits so many seconds, before a page is asked for again.
        heard: Called for each page that arrives.
    """

    def __init__(
        self,
        kind: Kind,
        resource: Resource,
        session: ApiSession,
        *,
        sleep: Callable[[float], Awaitable[None]],
        heard: Callable[[], None],
    ) -> None:
        self._kind = kind
        self._resource = resource
        self._session = session
        self._sleep = sleep
        self._heard = heard

    async def read(self) -> ListedObjects:
        """
        Read all pages.

        Raises:
            ListRefusedError: The server refuses, or sends no list.
            SourceError: There is no answer.
        """
        origin = f"{self._session.server}, {self._resource.name}"
        steps = complete_list(
            lambda page: decode_document(page, origin), self._session.page_size, kind=f"{self._resource.kind}List"
        )
        try:
            request = next(steps)
            while True:
                if request.wait_s:
                    await self._sleep(request.wait_s)
                request = steps.send(await self._page(request.limit, request.continue_token))
        except StopIteration as end:
            complete: CompleteList[Decoded] = end.value
        return ListedObjects(
            objects=tuple(found for page in complete.pages for found in objects_of(self._kind, page)),
            findings=tuple(finding for page in complete.pages for finding in page.findings),
            version=complete.resource_version,
        )

    async def current_version(self) -> str:
        """Ask for the version of the server's state; raises as `read` does."""
        answer = await self._page(1)
        if answer.status != HTTPStatus.OK:
            raise ListRefusedError(answer, attempts=1)
        try:
            return msgspec.json.decode(answer.body, type=_ListHead).metadata.resource_version
        except msgspec.MsgspecError as error:
            raise ListRefusedError(answer, attempts=1) from error

    async def _page(self, limit: int, continue_token: str = "") -> Answer:
        parameters = {
            "labelSelector": self._resource.label_selector,
            "fieldSelector": self._resource.field_selector,
            "limit": str(limit or ""),
            "continue": continue_token,
        }
        query = {name: text for name, text in parameters.items() if text}
        answer = await self._session.fetch("GET", self._resource.path, query)
        if answer.status == HTTPStatus.OK:
            self._heard()
        return answer
