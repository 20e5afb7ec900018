"""What happens to the shop while its pods are away: flows in tests of one's own."""

from pathlib import Path

import yaml

OBJECTS = Path(__file__).parents[1] / "golden" / "shop" / "objects.yaml"
CONFIG = {"clusterCIDR": "10.244.0.0/16"}


def without_endpoints_on(node: str) -> list[dict]:
    """The objects of the shop, but for the endpoints on one node."""
    objects = list(yaml.safe_load_all(OBJECTS.read_text()))
    for one in objects:
        if one["kind"] == "EndpointSlice":
            one["endpoints"] = [endpoint for endpoint in one["endpoints"] if endpoint["nodeName"] != node]
    return objects


def test_customers_are_dropped_while_the_local_pod_is_away(kproxy):
    """The load balancer's health check takes the node out meanwhile."""
    rules = kproxy.rules(without_endpoints_on("n1"), config=CONFIG)

    rules.flow(source="outside", to="203.0.113.80", port=80).is_dropped()
    rules.flow(source="pod", to="203.0.113.80", port=80).reaches(["10.244.2.7:8080"]).is_not_masqueraded()


def test_nobody_waits_for_a_timeout_when_all_pods_are_away(kproxy):
    """Without endpoints a client is told at once."""
    objects = [one for one in without_endpoints_on("n1") if one["kind"] != "EndpointSlice"]
    rules = kproxy.rules(objects, config=CONFIG)

    for source in ("pod", "outside"):
        rules.flow(source=source, to="203.0.113.80", port=80).is_rejected()


def test_each_endpoint_gets_its_share(kproxy):
    """Node ports are like the load balancer for pods: all endpoints, half of the connections each."""
    rules = kproxy.rules(OBJECTS, config=CONFIG)

    rules.flow(to="192.0.2.11", port=30080).reaches({"10.244.1.5:8080": "1/2", "10.244.2.7:8080": "1/2"})
