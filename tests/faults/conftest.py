"""A node for faults, of either backend."""

import pytest


@pytest.fixture(scope="module", params=["nft", "legacy"])
def backend(request: pytest.FixtureRequest) -> str:
    """The backend of the iptables programs."""
    return str(request.param)
