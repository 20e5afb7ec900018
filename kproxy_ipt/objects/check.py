"""
Checks of Services and Nodes: what sets one aside, and what is odd but harmless.

What comes in is typed and nothing more; what goes out are findings. Derived values are not computed here: `state`
reads what passed with the same lenient functions of `kproxy_ipt.addresses`.

Source: validation of the API server 1.36, as far as rules depend on it; kube-proxy for what happens to odd values.
"""

from kproxy_ipt.addresses import Family, canonical_address, canonical_prefix, family_of
from kproxy_ipt.errors import Finding
from kproxy_ipt.objects.model import (
    SCHEDULER_ANNOTATION,
    SERVICE_PROXY_NAME_LABEL,
    Node,
    Service,
    ServicePortSpec,
    ServiceSpec,
)
from kproxy_ipt.objects.report import (
    MAX_PORT,
    Report,
    check_address,
    check_label_name,
    check_namespace,
    check_padding,
    check_protocol,
    check_subdomain_name,
    is_label,
)

MAX_AFFINITY_TIMEOUT_S = 86400

_TYPES = ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName")
_AFFINITIES = ("None", "ClientIP")
_POLICIES = ("Cluster", "Local")
_FAMILIES = ("IPv4", "IPv6")
_SCHEDULERS = ("random", "rr")
_NO_CLUSTER_IP = (None, "", "None")


def check_service(service: Service) -> tuple[Finding, ...]:
    """
    Everything that is odd about one Service by itself.

    Returns:
        No finding for a clean Service; one of severity `rejected` means that it must be set aside.
    """
    report = Report("Service", service.metadata)
    spec = service.spec
    check_namespace(report, service.metadata)
    check_label_name(report, service.metadata)
    _check_choices(report, spec)
    _check_scheduler(report, service)
    _check_cluster_ips(report, spec)
    if spec.ports:
        _check_ports(report, spec.ports)
    _check_numbers(report, spec)
    if spec.external_ips or spec.load_balancer_source_ranges or service.status is not None:
        _check_external(report, service)
    return report.findings


def check_node(node: Node) -> tuple[Finding, ...]:
    """Everything that is odd about one Node."""
    report = Report("Node", node.metadata)
    check_subdomain_name(report, node.metadata)
    for index, entry in enumerate((node.status.addresses if node.status else None) or ()):
        if entry.type in ("InternalIP", "ExternalIP"):
            check_address(report, f"status.addresses[{index}].address", entry.address, "this address is ignored")
    for index, text in enumerate((node.spec.pod_cidrs if node.spec else None) or ()):
        if canonical_prefix(text) is None:
            report.warn(f"spec.podCIDRs[{index}]", text, "a prefix such as 10.244.1.0/24", "this prefix is ignored")
    return report.findings


def _check_choices(report: Report, spec: ServiceSpec) -> None:
    """The fields that take one of a few words; absent and empty are fine."""
    if spec.type and spec.type not in _TYPES:
        report.reject("spec.type", spec.type, ", ".join(_TYPES))
    if spec.session_affinity and spec.session_affinity not in _AFFINITIES:
        report.reject("spec.sessionAffinity", spec.session_affinity, "None or ClientIP")
    if spec.external_traffic_policy and spec.external_traffic_policy not in _POLICIES:
        report.reject("spec.externalTrafficPolicy", spec.external_traffic_policy, "Cluster or Local")
    if spec.internal_traffic_policy and spec.internal_traffic_policy not in _POLICIES:
        report.reject("spec.internalTrafficPolicy", spec.internal_traffic_policy, "Cluster or Local")


def _check_scheduler(report: Report, service: Service) -> None:
    wanted = (service.metadata.annotations or {}).get(SCHEDULER_ANNOTATION)
    if wanted is not None and wanted not in _SCHEDULERS:
        consequence = "the scheduler of the configuration counts"
        report.warn(f"metadata.annotations[{SCHEDULER_ANNOTATION}]", wanted, " or ".join(_SCHEDULERS), consequence)


def _check_cluster_ips(report: Report, spec: ServiceSpec) -> None:
    """Each an address, and of the family that `ipFamilies` says: that list is trusted later."""
    _check_cluster_ip(report, "spec.clusterIP", spec.cluster_ip)
    texts = spec.cluster_ips or ()
    for index, text in enumerate(texts):
        if text != spec.cluster_ip:
            _check_cluster_ip(report, f"spec.clusterIPs[{index}]", text)
    for index, family_name in enumerate(spec.ip_families or ()):
        if family_name not in _FAMILIES:
            report.reject(f"spec.ipFamilies[{index}]", family_name, "IPv4 or IPv6")
        elif index < len(texts):
            canonical = canonical_address(texts[index])
            if canonical is not None and family_of(canonical).api_name != family_name:
                expected = f"an {family_name} address, as spec.ipFamilies[{index}] says"
                report.reject(f"spec.clusterIPs[{index}]", texts[index], expected)


def _check_cluster_ip(report: Report, field: str, text: str | None) -> None:
    if text is None or text in _NO_CLUSTER_IP:
        return
    canonical = canonical_address(text)
    if canonical is None:
        report.reject(field, text, 'an IP address, "" or None')
    else:
        check_padding(report, field, text, canonical)


def _check_ports(report: Report, ports: tuple[ServicePortSpec, ...]) -> None:
    """Each port by itself, and that no two are alike."""
    names: set[str] = set()
    numbers: set[tuple[int | None, str]] = set()
    for index, port in enumerate(ports):
        _check_port(report, index, port)
        name = port.name or ""
        number = (port.port, port.protocol or "TCP")
        if not name and len(ports) > 1:
            report.reject(f"spec.ports[{index}].name", port.name, "a name, since there are several ports")
        elif name in names:
            report.reject(f"spec.ports[{index}].name", name, "a name that no other port of the Service has")
        if port.port is not None and number in numbers:
            expected = "a port and protocol that no other port of the Service has"
            report.reject(f"spec.ports[{index}].port", port.port, expected)
        names.add(name)
        numbers.add(number)


def _check_port(report: Report, index: int, port: ServicePortSpec) -> None:
    if port.port is None or not 0 < port.port <= MAX_PORT:
        report.reject(f"spec.ports[{index}].port", port.port, f"a number from 1 to {MAX_PORT}")
    if port.name and not is_label(port.name):
        report.reject(f"spec.ports[{index}].name", port.name, "a DNS label of at most 63 characters")
    if port.protocol != "TCP":
        check_protocol(report, f"spec.ports[{index}].protocol", port.protocol)
    if port.node_port and not 0 < port.node_port <= MAX_PORT:
        report.reject(f"spec.ports[{index}].nodePort", port.node_port, f"a number from 0 to {MAX_PORT}")


def _check_numbers(report: Report, spec: ServiceSpec) -> None:
    if spec.health_check_node_port and not 0 < spec.health_check_node_port <= MAX_PORT:
        expected = f"a number from 0 to {MAX_PORT}"
        report.reject("spec.healthCheckNodePort", spec.health_check_node_port, expected)
    if spec.session_affinity != "ClientIP" or spec.session_affinity_config is None:
        return
    client_ip = spec.session_affinity_config.client_ip
    timeout_s = client_ip.timeout_seconds if client_ip else None
    if timeout_s is not None and not 0 < timeout_s <= MAX_AFFINITY_TIMEOUT_S:
        expected = f"a number of seconds from 1 to {MAX_AFFINITY_TIMEOUT_S}"
        report.reject("spec.sessionAffinityConfig.clientIP.timeoutSeconds", timeout_s, expected)


def _check_external(report: Report, service: Service) -> None:
    """Addresses from outside; a Service without any rules of ours is passed over, but a headless one is told so."""
    spec = service.spec
    if spec.type == "ExternalName" or SERVICE_PROXY_NAME_LABEL in (service.metadata.labels or ()):
        return
    external_ips = spec.external_ips or ()
    if spec.cluster_ip == "None":
        if external_ips:
            consequence = "a headless Service gets no rules, so its externalIPs do not work"
            report.warn("spec.externalIPs", external_ips[0], "no externalIPs, or a cluster IP", consequence)
        return
    families = _cluster_ip_families(spec)
    for index, text in enumerate(external_ips):
        _check_entry(report, f"spec.externalIPs[{index}]", text, families, "this external IP is ignored")
    for index, text in enumerate(_ingress_ips(service)):
        field = f"status.loadBalancer.ingress[{index}].ip"
        _check_entry(report, field, text, families, "this ingress address is ignored")
    if spec.load_balancer_source_ranges:
        _check_source_ranges(report, service, spec.load_balancer_source_ranges)


def _check_entry(report: Report, field: str, text: str, families: set[Family], consequence: str) -> None:
    """An address is only reached by the rules of its own family, and those are made where there is a cluster IP."""
    canonical = check_address(report, field, text, consequence)
    if canonical is not None and families and family_of(canonical) not in families:
        expected = f"an {' or '.join(family.api_name for family in sorted(families))} address, as spec.clusterIPs are"
        report.warn(field, text, expected, consequence)


def _ingress_ips(service: Service) -> tuple[str, ...]:
    """The texts of `ip` of all ingress entries, "" where there is none or where it is not for us (`ipMode: Proxy`)."""
    status = service.status.load_balancer if service.status else None
    entries = (status.ingress if status else None) or ()
    return tuple((entry.ip or "") if entry.ip_mode in (None, "", "VIP") else "" for entry in entries)


def _check_source_ranges(report: Report, service: Service, texts: tuple[str, ...]) -> None:
    """Bad entries, and above all: what the list leaves open to everybody."""
    found: set[Family] = set()
    for index, text in enumerate(texts):
        trimmed = text.strip()
        prefix = canonical_prefix(trimmed)
        field = f"spec.loadBalancerSourceRanges[{index}]"
        if prefix is not None:
            found.add(family_of(prefix))
            check_padding(report, field, trimmed, prefix)
        elif trimmed:
            report.warn(field, text, "a prefix such as 192.0.2.0/24", "this range is ignored")
    if not found:
        consequence = "NOTHING IS RESTRICTED: the load balancer addresses are open to everybody"
        report.warn("spec.loadBalancerSourceRanges", ", ".join(texts), "at least one valid prefix", consequence)
        return
    for family in sorted(_families(service) - found):
        consequence = f"the {family.api_name} load balancer addresses are open to everybody"
        expected = f"a prefix of {family.api_name} too"
        report.warn("spec.loadBalancerSourceRanges", ", ".join(texts), expected, consequence)


def _families(service: Service) -> set[Family]:
    """The families of the load balancer addresses; while there are none, those of the cluster IPs."""
    spec = service.spec
    addresses = {canonical_address(text) for text in _ingress_ips(service)}
    if addresses <= {None}:
        return _cluster_ip_families(spec)
    return {family_of(address) for address in addresses if address is not None}


def _cluster_ip_families(spec: ServiceSpec) -> set[Family]:
    addresses = {canonical_address(text) for text in (spec.cluster_ip or "", *(spec.cluster_ips or ()))}
    return {family_of(address) for address in addresses if address is not None}
