"""The pages of the status server, without a browser: what they say, to whom, and how they escape."""

import json
import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.daemon.answers import Answer
from kproxy_ipt.stats.model import EndpointTraffic, ServiceTraffic, Skew, TrafficReport
from kproxy_ipt.testing.objects import endpoint_slice, node, service, service_port, slice_endpoint, slice_port
from kproxy_ipt.testing.watched_daemon import LOCALHOST, WatchedDaemon

WEB = service("web", ports=[service_port(80, name="http")])
READY = slice_endpoint("10.244.1.2", node_name="n1")
LEAVING = slice_endpoint("10.244.1.3", node_name="n2", ready=False, serving=True, terminating=True)
HOSTILE = "<script>alert('x\"&')</script>"
PAGES = ("/", "/syncs", "/drift", "/trace", "/service/default/web", "/graph/default/web")


class Counted:
    """Connections as somebody counted them."""

    def __init__(self, *services: ServiceTraffic, unix_time_s: float = 1.0) -> None:
        self._report = TrafficReport(services=services, unix_time_s=unix_time_s)
        self.reads = 0

    def report(self, only: AbstractSet[tuple[str, str]] | None = None) -> TrafficReport:
        """Always the same, for one Service."""
        assert only == {("default", "web")}
        return self._report

    async def read(self, *, max_age_s: float) -> None:
        """Count that somebody asked."""
        assert max_age_s > 0
        self.reads += 1

    async def refresh(self, *, max_age_s: float) -> TrafficReport:
        """Nobody who shows a page waits for all Services."""
        raise NotImplementedError


def _daemon() -> WatchedDaemon:
    daemon = WatchedDaemon(WEB, endpoint_slice(WEB, [READY, LEAVING]), node("node1"))
    daemon.sync("first sync")
    return daemon


def _text(answer: Answer) -> str:
    """What a person reads: without tags, blanks as one."""
    found = re.sub(r"<style.*?</style>|<[^>]*>", " ", answer.body.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", found)


def _document(answer: Answer) -> Mapping[str, object]:
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize("path", PAGES)
def test_pages_allow_nothing_but_our_own_files(path: str) -> None:
    """No script or style of others, nothing inline, no frame, no copy in a cache."""
    answer = _daemon().ask(path)

    assert (answer.status, answer.content_type) == (200, "text/html; charset=utf-8")
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["Cache-Control"] == "no-store"
    assert not re.search(rb"<script(?! src=)|<style|\bstyle=|\bon[a-z]+=", answer.body)
    assert not re.search(rb"(?:src|href|action)=\"(?!/|\?|#)", answer.body)


@pytest.mark.parametrize("path", ["/nope", "/service/default/gone", "/graph/default/gone.svg", "/static/pages.py"])
def test_what_is_not_there_is_not_found(path: str) -> None:
    """A Service that is gone is as good as one that never was."""
    assert _daemon().ask(path).status == 404


def test_a_foreign_host_is_refused_before_anything_is_done() -> None:
    """Whatever the path."""
    daemon = _daemon()

    assert [daemon.ask(path, headers={"host": "evil.example"}).status for path in (*PAGES, "/static/status.js")] == [
        421
    ] * (len(PAGES) + 1)
    assert daemon.machine.saves == 1


def test_static_files_may_be_kept() -> None:
    """Their address changes with their content."""
    answer = _daemon().ask("/static/status.js")

    assert answer.content_type == "text/javascript; charset=utf-8"
    assert "max-age" in answer.headers["Cache-Control"]


def test_the_list_shows_endpoints_used_and_known() -> None:
    """One of the two is leaving."""
    text = _text(_daemon().ask("/"))

    assert "default/ web some out 1 / 2 ClusterIP 10.96.0.10 80/tcp http" in text
    assert "up to date" in text


def test_a_service_tells_of_each_endpoint_why_it_is_in_or_out() -> None:
    """With the sentence for those that are out."""
    text = _text(_daemon().ask("/service/default/web"))

    assert "10.244.1.2:80 in ready 100 %" in text
    assert "10.244.1.3:80 out terminating, ready ones exist it is terminating, and there are ready endpoints" in text


def test_shares_stand_beside_what_was_counted() -> None:
    """Expected and observed as numbers, and as a bar."""
    traffic = ServiceTraffic(
        service_port="default/web:http",
        protocol="tcp",
        family=Family.IPV4,
        connections=1234,
        endpoints=(
            EndpointTraffic(endpoint="10.244.1.2:80", connections=1200, recent=100, share=1.0, observed=0.75),
            EndpointTraffic(endpoint="10.244.1.9:80", connections=34, is_gone=True),
        ),
        skew=Skew.UNEXPLAINED,
    )
    counted, daemon = Counted(traffic), _daemon()
    answer = daemon.ask("/service/default/web", traffic=counted)

    assert "1,234 Shares connections do not fit the shares, and no rule says why" in _text(answer)
    assert "100 % 75 %" in _text(answer)
    assert "10.244.1.9:80 gone" in _text(answer)
    assert b'class="part" y="2" width="75.00"' in answer.body
    assert counted.reads == 1
    assert "1,234" in _text(daemon.ask("/", traffic=counted))


def _lagging() -> ServiceTraffic:
    """Rules that lead to another endpoint than the ready one."""
    return ServiceTraffic(
        service_port="default/web:http",
        protocol="tcp",
        family=Family.IPV4,
        connections=1200,
        endpoints=(EndpointTraffic(endpoint="10.244.1.9:80", connections=1200, recent=1200, share=1.0, observed=1.0),),
    )


def test_rules_that_are_not_wanted_are_told() -> None:
    """Where they were read after the last write: what was read before it is no news."""
    daemon = _daemon()
    earlier, later = (
        _text(daemon.ask("/service/default/web", traffic=Counted(_lagging(), unix_time_s=daemon.unix_s() + seconds)))
        for seconds in (-1, 1)
    )

    assert "10.244.1.9:80 out only rules of the kernel lead to it – 100 % 1,200" in later
    assert (
        "The kernel has other rules than are wanted: 10.244.1.2:80 gets nothing by policy Cluster instead of 100.0 %; "
        "10.244.1.9:80 gets 100.0 % by policy Cluster instead of nothing"
    ) in later
    assert "other rules" not in earlier


def test_endpoints_of_the_other_family_are_told_with_its_rules() -> None:
    """Here they are a number, unless there are no others."""
    both = service("web", cluster_ips=["10.96.0.10", "fd00:10:96::a"], ports=[service_port(80, name="http")])
    six = endpoint_slice(both, ["fd00:10:244:1::2"])
    alone, beside = WatchedDaemon(both, six), WatchedDaemon(both, six, endpoint_slice(both, ["10.244.1.2"]))

    assert "fd00:10:244:1::2 out other family" in _text(alone.ask("/service/default/web"))
    assert "1 endpoint of the other family: not for these rules" in _text(beside.ask("/service/default/web"))
    assert "fd00:10:244:1::2" not in _text(beside.ask("/service/default/web"))


def test_policies_with_different_shares_have_both_shown() -> None:
    """One of two endpoints is on this node: by policy Local it gets everything."""
    split = service(
        "web", service_type="NodePort", ports=[service_port(80, name="http", node_port=30080)], external_policy="Local"
    )
    here, there = slice_endpoint("10.244.1.2", node_name="node1"), slice_endpoint("10.244.2.2", node_name="n2")
    daemon = WatchedDaemon(split, endpoint_slice(split, [here, there]), node("node1"))
    daemon.sync("first sync")
    text = _text(daemon.ask("/service/default/web"))

    assert "10.244.1.2:80 in ready 50 % Cluster 50 %, Local 100 %" in text
    assert re.search(r"10\.244\.2\.2:80 in Cluster: ready, Local: not local .* 50 % Cluster 50 %, Local 0 %", text)


def test_what_was_to_be_expected_is_by_both_policies() -> None:
    """As many connections by each as came, so that it can be held against what was observed."""
    counted = ServiceTraffic(
        service_port="default/web:http",
        protocol="tcp",
        family=Family.IPV4,
        connections=100,
        endpoints=(EndpointTraffic(endpoint="10.244.1.2:80", connections=80, share=1.0, expected=0.75, observed=0.8),),
    )
    answer = _daemon().ask("/service/default/web", traffic=Counted(counted))

    assert "10.244.1.2:80 in ready 75 % 80 %" in _text(answer)
    assert b'class="expected" x="93.75"' in answer.body


def test_a_large_service_shows_those_that_are_out_first() -> None:
    """A page of 5,000 endpoints is cut, and says so."""
    addresses = [f"10.244.{number // 200}.{number % 200 + 1}" for number in range(1000)]
    out = slice_endpoint("10.244.200.1", ready=False)
    daemon = WatchedDaemon(WEB, endpoint_slice(WEB, [*addresses, out]))
    text = _text(daemon.ask("/service/default/web"))

    assert text.index("10.244.200.1:80 out") < text.index("80 in ready")
    assert "701 more endpoints are not shown" in text
    assert _text(daemon.ask("/graph/default/web")).count("chains are too many for a picture") == 1


def test_hostile_text_is_escaped_wherever_it_comes_from() -> None:
    """Names, ports, nodes, what the kernel said, what was searched for: none of it becomes a tag."""
    evil = service(HOSTILE, namespace=HOSTILE, service_type=HOSTILE, ports=[service_port(80, name=HOSTILE)])
    behind = slice_endpoint("10.244.1.2", node_name=HOSTILE)
    slices = endpoint_slice(evil, [behind], namespace=HOSTILE, ports=[slice_port(80, name=HOSTILE)])
    daemon = WatchedDaemon(evil, slices, node("node1", zone=HOSTILE))
    daemon.machine.refused.add("10.244.1.2")
    daemon.sync(HOSTILE)
    name = f"{HOSTILE}/{HOSTILE}".replace("</script>", "")
    paths = ("/", "/syncs", "/drift", "/trace", f"/service/{name}", f"/graph/{name}", "/trace", f"/service/x/{HOSTILE}")
    query = dict.fromkeys(("q", "state", "page", "from", "to", "port", "protocol", "interface", "family"), HOSTILE)

    for path in paths:
        assert b"<script>" not in daemon.ask(path, query).body.lower(), path
        assert b"<script>" not in daemon.ask(path).body.lower(), path


def test_a_refused_service_says_what_the_kernel_said() -> None:
    """On its page, and on that of drift."""
    daemon = WatchedDaemon(WEB, endpoint_slice(WEB, [READY]))
    daemon.machine.refused.add("10.244.1.2")
    daemon.sync()

    assert "set aside, the kernel refuses its rules" in _text(daemon.ask("/service/default/web"))
    assert re.search(r"default/web IPv4 .*10\.244\.1\.2.* none 1 in 60 s", _text(daemon.ask("/drift")))


def test_a_repair_names_who_and_what() -> None:
    """What others did to our rules stays visible."""
    daemon = _daemon()
    kernel = daemon.machine.kernels[Family.IPV4]
    kernel.restore("*nat\n:KUBE-SERVICES - [0:0]\nCOMMIT\n")
    daemon.sync("iptables changed the tables")

    assert "IPv4 iptables changed the tables 1 nat KUBE-SERVICES" in _text(daemon.ask("/drift"))
    assert "repaired 1 chain" in _text(daemon.ask("/syncs"))


def test_a_graph_is_a_picture_and_sentences() -> None:
    """The picture may have a style of its own and nothing else."""
    daemon = _daemon()
    picture = daemon.ask("/graph/default/web.svg")

    assert (picture.content_type, picture.body[:4]) == ("image/svg+xml", b"<svg")
    assert picture.headers["Content-Security-Policy"].startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "tcp 80 to 10.96.0.10" in _text(daemon.ask("/graph/default/web"))


def test_a_trace_asks_the_kernel() -> None:
    """Not what is wanted: a flushed chain shows."""
    daemon, query = _daemon(), {"to": "svc/default/web", "from": "10.244.9.9"}
    assert "100 % to endpoint 10.244.1.2:80" in _text(daemon.ask("/trace", query))

    service_chain = next(
        name for name in daemon.machine.kernels[Family.IPV4].saved().tables["nat"] if name.startswith("KUBE-SVC-")
    )
    daemon.machine.kernels[Family.IPV4].restore(f"*nat\n:{service_chain} - [0:0]\nCOMMIT\n")
    assert "leaves unchanged 10.96.0.10:80" in _text(daemon.ask("/trace", query))


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ({"to": "svc/default/gone", "node": "1"}, "no rule names that service"),
        ({"to": "10.0.0.1"}, "say where the packet comes from"),
        ({"to": "10.0.0.1", "from": "fd00::1"}, "different families"),
        ({"to": "fd00::2", "from": "fd00::1"}, "IPv6 is not served here"),
        ({"to": "10.0.0.1", "node": "1", "port": "70000"}, "is no port"),
        ({"to": "10.0.0.1", "node": "1", "protocol": "quic"}, "is none of tcp, udp, sctp"),
    ],
)
def test_a_question_that_means_nothing_is_said_to(query: Mapping[str, str], problem: str) -> None:
    """The form stays as it was filled in."""
    answer = _daemon().ask("/trace", query)

    assert problem in _text(answer)
    assert f'value="{query["to"]}"' in answer.body.decode()


def test_documents_say_the_same() -> None:
    """For tools."""
    daemon = _daemon()
    status = _document(daemon.ask("/status.json", {"q": "web"}))
    one = _document(daemon.ask("/service/default/web.json"))

    assert status["counts"] == {
        "set-aside": 0,
        "no-endpoint": 0,
        "waiting": 0,
        "partly": 1,
        "served": 0,
        "no-rules": 0,
    }
    assert [row["endpointsUsed"] for row in status["services"]] == [1]  # type: ignore[attr-defined]
    assert one["condition"] == "partly"
    assert one["explanation"]["service"] == "default/web"  # type: ignore[index]
    assert daemon.ask("/service/default/gone.json").status == 404


def test_who_comes_when_all_places_are_taken_is_told_when_to_come_again() -> None:
    """Pages never pile up; static files are always there."""
    answer = _daemon().ask("/", places=0)

    assert (answer.status, answer.headers["Retry-After"]) == (503, "2")
    assert _daemon().ask("/static/status.css", places=0).status == 200


def test_objects_in_conflict_are_odd() -> None:
    """Two Services that claim one address are each fine by themselves."""
    rival = service("rival", external_ips=["192.0.2.77"])
    daemon = WatchedDaemon(service("web", external_ips=["192.0.2.77"]), rival)

    assert "192.0.2.77" in _text(daemon.ask("/drift"))


def test_an_incomplete_start_is_said() -> None:
    """Before all lists have arrived nothing is written, and the pages say so rather than look empty."""
    daemon = WatchedDaemon()
    daemon.inputs.ready.clear()

    assert "have not arrived yet" in _text(daemon.ask("/", headers=LOCALHOST))
