"""What several tests of decoding share: recorded answers and short manifests."""

from collections.abc import Callable
from pathlib import Path

import pytest

_API = Path(__file__).parents[1] / "api"

_SERVICE = """\
apiVersion: v1
kind: Service
metadata: {name: %s, namespace: shop}
spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}
"""


@pytest.fixture(scope="session")
def recorded_body() -> Callable[[str], bytes]:
    """The body of a recorded answer of an API server, by its name without suffix."""

    def read(name: str) -> bytes:
        return (_API / f"{name}.http").read_bytes().partition(b"\n\n")[2]

    return read


@pytest.fixture(scope="session")
def service_yaml() -> Callable[[str], str]:
    """A Service in namespace `shop` as YAML text, by its name."""

    def write(name: str) -> str:
        return _SERVICE % name

    return write
