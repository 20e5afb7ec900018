"""The effective configuration is written as kube-proxy writes it, and read back."""

import json
from collections.abc import Callable

import pytest
import yaml
from msgspec.structs import replace

from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.encode import config_document, encode_config
from kproxy_ipt.config.model import Config, IptablesConfig, LoggingConfig, VModuleItem

# The fields that the recorded rules of kube-proxy were made with.
RECORDED = (
    "mode: iptables\nhostnameOverride: node1\ndetectLocalMode: ClusterCIDR",
    "clusterCIDR: 10.244.0.0/16,fd00:10:244::/56",
    "clusterCIDR: 10.244.0.0/16",
    "nodePortAddresses:\n- primary",
    "nodePortAddresses:\n- 172.31.0.0/16",
    "nodePortAddresses:\n- 127.0.0.0/8\n- 172.31.0.0/30\n- fd00:31::/64",
    "iptables:\n  localhostNodePorts: false",
    "iptables:\n  masqueradeAll: true",
    "iptables:\n  masqueradeBit: 20",
    "detectLocalMode: NodeCIDR",
    "detectLocalMode: BridgeInterface\ndetectLocal:\n  bridgeInterface: cni0",
    "detectLocalMode: InterfaceNamePrefix\ndetectLocal:\n  interfaceNamePrefix: veth",
    "conntrack:\n  tcpBeLiberal: true",
    "kproxyIpt:\n  externalIPs:\n  - 192.0.2.0/24",
    "kproxyIpt:\n  statusBindAddress: 127.0.0.1:10258",
    "kproxyIpt:\n  dispatch: tree\n  balance: grouped\n  scheduler: rr\n  connectionMetrics: none",
)

WRITTEN = """\
apiVersion: kubeproxy.config.k8s.io/v1alpha1
bindAddress: 0.0.0.0
bindAddressHardFail: false
clientConnection:
  acceptContentTypes: ""
  burst: 10
  contentType: application/vnd.kubernetes.protobuf
  kubeconfig: ""
  qps: 5
clusterCIDR: ""
configSyncPeriod: 15m0s
conntrack:
  maxPerCore: 32768
  min: 131072
  tcpBeLiberal: false
  tcpCloseWaitTimeout: 1h0m0s
  tcpEstablishedTimeout: 24h0m0s
  udpStreamTimeout: 0s
  udpTimeout: 0s
detectLocal:
  bridgeInterface: ""
  interfaceNamePrefix: ""
detectLocalMode: ClusterCIDR
"""


@pytest.mark.parametrize("fields", RECORDED)
def test_recorded_configuration_survives_the_round_trip(decode: Callable[[str], DecodedConfig], fields: str) -> None:
    """What is written reads back to the same Config, and nothing in it is odd."""
    decoded = decode(fields)

    assert decoded.notes == ()
    assert decode_config(encode_config(decoded.config).encode(), "written") == decoded


def test_default_is_written_as_kube_proxy_writes_it() -> None:
    """Alphabetical order, Go durations, double quotes around what is no plain text, nulls for unset lists."""
    text = encode_config(Config())

    assert text.startswith(WRITTEN)
    assert "nodePortAddresses: null\n" in text
    assert "featureGates" not in text
    assert '      infoBufferSize: "0"\n' in text


def test_document_is_plain_json_in_alphabetical_order() -> None:
    """The same values as in the YAML text, at every level sorted by name."""
    document = config_document(Config(node_port_addresses=("primary",)))

    assert json.loads(json.dumps(document)) == document
    assert json.dumps(document) == json.dumps(document, sort_keys=True)
    assert yaml.safe_load(encode_config(Config(node_port_addresses=("primary",)))) == document


@pytest.mark.parametrize(
    "text", ["yes", "n", "1:30", "5", "1e3", "~", "<<", "null", "2001-01-01", " a", "a: b", "\u00e4", "\x00"]
)
def test_text_that_looks_like_another_type_stays_text(text: str) -> None:
    """Quotes keep names that YAML would read as something else."""
    config = Config(
        interface_name_prefix=text, logging=LoggingConfig(vmodule=(VModuleItem(file_pattern=text, verbosity=1),))
    )

    assert decode_config(encode_config(config).encode(), "written").config == config


def test_gap_of_zero_cannot_be_written() -> None:
    """The file format has no word for it: 0s means "unset", as in kube-proxy's own output."""
    config = Config(iptables=IptablesConfig(min_sync_period_s=0.0))

    assert "minSyncPeriod: 0s" in encode_config(config)
    assert decode_config(encode_config(config).encode(), "written").config == replace(config, iptables=IptablesConfig())
