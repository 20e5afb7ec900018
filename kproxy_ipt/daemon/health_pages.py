"""
The pages of the health server: `/healthz` and `/livez`, by default on port 10256 of every address.

`/healthz` is for balancers: 200 while all families are healthy and the node is not about to be removed. `/livez` is for
the kubelet: the same without the node. `?verbose` adds, to the same status and keys, what happened last in each family
and when the API was last heard.

Source: kube-proxy 1.36, `pkg/proxy/healthcheck`.
"""

from kproxy_ipt.daemon.answers import Answer, Request, json_answer, not_found
from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.health import ProxyHealth, family_details, health_document
from kproxy_ipt.daemon.metrics import Metrics


class HealthPages:
    """Answers from *health*; every answer is counted in *metrics*; *api* is None where no API is asked."""

    def __init__(self, health: ProxyHealth, metrics: Metrics, api: ApiStatus | None = None) -> None:
        self._health = health
        self._metrics = metrics
        self._api = api

    def respond(self, request: Request) -> Answer:
        """Answer a request."""
        if request.path not in ("/healthz", "/livez"):
            return not_found()
        for_balancers = request.path == "/healthz"
        health = self._health.judge()
        is_ok = health.healthy and (health.node_eligible or not for_balancers)
        document = health_document(health, is_ok=is_ok, with_node=for_balancers)
        if "verbose" in request.query:
            document["families"] = family_details(health)
            if self._api is not None:
                document["api"] = self._api.document()
        status = 200 if is_ok else 503
        count = self._metrics.healthz_answered if for_balancers else self._metrics.livez_answered
        count(status)
        return json_answer(document, status)
