"""Builders that the tests of the configuration share."""

from collections.abc import Callable

import pytest

from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.errors import ConfigError

HEAD = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"


@pytest.fixture
def decode() -> Callable[[str], DecodedConfig]:
    """Decode the fields of a YAML file; kind and version are put in front."""
    return lambda fields: decode_config((HEAD + fields).encode(), "proxy.conf")


@pytest.fixture
def problems(decode: Callable[[str], DecodedConfig]) -> Callable[[str], tuple[str, ...]]:
    """Decode fields that are wrong, and return every problem."""

    def refused(fields: str) -> tuple[str, ...]:
        with pytest.raises(ConfigError) as caught:
            decode(fields)
        return caught.value.problems

    return refused
