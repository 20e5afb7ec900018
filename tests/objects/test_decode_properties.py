"""Whatever is read: findings, never an exception."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import decode_documents
from kproxy_ipt.objects.model import Objects

_SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8)
)
_FIELD_NAMES = """
metadata spec status name namespace labels annotations ports port protocol nodePort clusterIP clusterIPs ipFamilies
externalIPs loadBalancer ingress ip ipMode endpoints addresses subsets addressType sessionAffinityConfig clientIP
timeoutSeconds loadBalancerSourceRanges conditions hints forZones podCIDRs kind apiVersion items type
"""
_YAML_WORDS = """
--- ... a: b - [ ] { } , & * &a *a ! !!str !!int << <<: | > # % ? ' " yes 010 1e999 0x \\ @ 😀
kind: items: Service v1 apiVersion: metadata: spec:
"""
_FIELDS = st.sampled_from(_FIELD_NAMES.split())
_TREES = st.recursive(
    _SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(_FIELDS, inner, max_size=6))
)
_KINDS = st.sampled_from(["Service", "EndpointSlice", "Endpoints", "Node", "List", "ServiceList", "NodeList", "Pod"])
_OBJECTS = st.builds(
    lambda kind, version, fields: {"kind": kind, "apiVersion": version, **fields},
    _KINDS,
    st.sampled_from(["v1", "discovery.k8s.io/v1", "discovery.k8s.io/v1beta1", ""]),
    st.dictionaries(_FIELDS.filter(lambda field: field not in ("kind", "apiVersion")), _TREES, max_size=6),
)
_YAML_BITS = st.lists(
    st.sampled_from([*_YAML_WORDS.split(), "\n", "\n  ", "\n---", "\t", "\x00", "\ufeff"]), max_size=40
).map(lambda bits: " ".join(bits).encode())


def _read(text: bytes) -> Objects:
    """All that comes of a text."""
    return collect(decode_documents(text, "input"))


@given(text=st.binary(max_size=200))
def test_arbitrary_bytes_never_raise(text: bytes) -> None:
    """Any bytes give objects or findings."""
    assert isinstance(_read(text), Objects)


@given(text=_YAML_BITS)
@settings(max_examples=300)
def test_arbitrary_yaml_never_raises(text: bytes) -> None:
    """Any sequence of what YAML is made of gives objects or findings."""
    assert isinstance(_read(text), Objects)


@given(value=st.one_of(_OBJECTS, _TREES, st.lists(_OBJECTS, max_size=3)))
@settings(max_examples=300)
def test_arbitrary_structures_never_raise(value: object) -> None:
    """Objects whose fields hold anything give objects or findings, alone and in a List."""
    listed = {"kind": "List", "apiVersion": "v1", "items": value if isinstance(value, list) else [value]}

    assert isinstance(_read(json.dumps(value).encode()), Objects)
    assert isinstance(_read(json.dumps(listed).encode()), Objects)


@given(text=st.text(max_size=12))
def test_odd_names_stay_on_one_printable_line(text: str) -> None:
    """Names from outside cannot break the lines of a log."""
    service = {"kind": "Service", "apiVersion": "v1", "metadata": {"name": text, "namespace": text}, "spec": {}}

    findings = _read(json.dumps(service).encode()).findings

    assert all(str(finding).isprintable() for finding in findings)
