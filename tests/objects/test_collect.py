"""Documents become one set of objects."""

import msgspec

from kproxy_ipt.errors import Finding, Severity
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import Decoded
from kproxy_ipt.objects.model import EndpointAddress, Endpoints, EndpointSubset, ObjectMeta, Objects, Service
from kproxy_ipt.testing.objects import endpoint_slice, node, service, slice_port


def _endpoints(name: str = "web") -> Endpoints:
    """An Endpoints object with one address."""
    subset = EndpointSubset(addresses=(EndpointAddress("10.0.0.1"),), ports=(slice_port(),))
    return Endpoints(metadata=ObjectMeta(name=name, namespace="default"), subsets=(subset,))


def _with_selector(name: str = "web") -> Service:
    """A Service that selects pods."""
    plain = service(name)
    return msgspec.structs.replace(plain, spec=msgspec.structs.replace(plain.spec, selector={"app": name}))


def _slice_names(objects: Objects) -> list[str]:
    """The names of all slices, in order."""
    return [found.metadata.name for found in objects.endpoint_slices]


def test_objects_are_sorted_by_namespace_and_name() -> None:
    """The order of reading does not show in the result."""
    first, second, third = service("b", namespace="a"), service("a", namespace="b"), service("c", namespace="a")

    one = collect([Decoded(origin="x", services=(second, third, first))])
    other = collect([Decoded(origin="x", services=(third,)), Decoded(origin="y", services=(first, second))])

    assert one.services == other.services == (first, third, second)


def test_last_definition_wins_and_both_origins_are_named() -> None:
    """As with `kubectl apply` of one file after the other."""
    parts = [
        Decoded(origin="a.yaml", services=(service(ports=[80]),), nodes=(node(),)),
        Decoded(origin="b.yaml, document 2", services=(service(ports=[81]),)),
    ]

    objects = collect(parts)

    assert objects.services == (service(ports=[81]),)
    assert [(finding.object, finding.found, finding.consequence) for finding in objects.findings] == [
        (
            "Service default/web",
            "one definition in a.yaml and one in b.yaml, document 2",
            "the one in b.yaml, document 2 is used",
        )
    ]


def test_same_name_in_other_namespace_or_kind_is_no_duplicate() -> None:
    """Identity is kind, namespace and name."""
    part = Decoded(
        origin="x", services=(service(), service(namespace="shop", cluster_ip="10.96.0.2")), nodes=(node("web"),)
    )

    objects = collect([part])

    assert objects.findings == ()
    assert len(objects.services) == 2


def test_findings_and_counts_of_all_documents_are_kept() -> None:
    """Findings stay in the order of reading; counts add up, sorted by kind."""
    findings = [
        Finding(object=name, field="", found="", expected="", consequence="", severity=Severity.WARNING)
        for name in ("b", "a")
    ]

    objects = collect(
        [
            Decoded(origin="x", findings=(findings[0],), ignored={"Pod": 1, "Job": 1}),
            Decoded(origin="y", findings=(findings[1],), ignored={"Pod": 2}),
        ]
    )

    assert objects.findings == tuple(findings)
    assert list(objects.ignored.items()) == [("Job", 1), ("Pod", 3)]


def test_endpoints_without_slices_in_the_input_are_mirrored_even_with_a_selector() -> None:
    """Old dumps hold no slices at all."""
    objects = collect([Decoded(origin="x", services=(_with_selector(),), endpoints=(_endpoints(),))])

    assert _slice_names(objects) == ["web-ipv4-1"]
    assert objects.findings == ()


def test_slices_of_a_service_win_over_its_endpoints() -> None:
    """In the dump of a cluster both are there, in whatever order."""
    parts = [
        Decoded(origin="x", services=(service(),), endpoints=(_endpoints(),)),
        Decoded(origin="y", endpoint_slices=(endpoint_slice(name="web-abc"),)),
    ]

    assert _slice_names(collect(parts)) == _slice_names(collect(reversed(parts))) == ["web-abc"]


def test_endpoints_of_service_without_selector_are_mirrored_beside_slices_of_others() -> None:
    """This is what the mirroring controller is for."""
    part = Decoded(
        origin="x",
        services=(service(),),
        endpoints=(_endpoints(),),
        endpoint_slices=(endpoint_slice("other", name="a-slice"), endpoint_slice("zoo", name="zoo-slice")),
    )

    objects = collect([part])

    assert _slice_names(objects) == ["a-slice", "web-ipv4-1", "zoo-slice"]
    assert objects.findings == ()


def test_endpoints_of_service_with_selector_are_ignored_beside_slices_of_others() -> None:
    """The cluster had a slice controller, and it made none for this Service."""
    part = Decoded(
        origin="x",
        services=(_with_selector(),),
        endpoints=(_endpoints(),),
        endpoint_slices=(endpoint_slice("other", name="other-abc"),),
    )

    objects = collect([part])

    assert _slice_names(objects) == ["other-abc"]
    assert [(finding.object, finding.severity) for finding in objects.findings] == [
        ("Endpoints default/web", Severity.WARNING)
    ]


def test_conflicts_between_services_are_found() -> None:
    """They show only when all documents are together."""
    parts = [Decoded(origin=name, services=(service(name),)) for name in ("b", "a")]

    (finding,) = collect(parts).findings

    assert finding.object == "Service default/b"
    assert "Service default/a" in finding.consequence


def test_nothing_gives_empty_objects() -> None:
    """No documents, no objects."""
    assert collect([]) == Objects()
