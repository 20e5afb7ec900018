"""What is said about a service port, in words."""

import pytest

from kproxy_ipt.addresses import Family
from kproxy_ipt.stats.model import EndpointTraffic, ServiceTraffic, Skew


def _web(skew: Skew, probability: float | None, *shares: float) -> ServiceTraffic:
    endpoints = (EndpointTraffic(endpoint=f"{one}", connections=0, share=one) for one in shares)
    return ServiceTraffic(
        service_port="default/web",
        protocol="tcp",
        family=Family.IPV4,
        endpoints=tuple(endpoints),
        skew=skew,
        probability=probability,
    )


@pytest.mark.parametrize(
    ("traffic", "sentence"),
    [
        (_web(Skew.TOO_FEW, None), "no rule leads to an endpoint"),
        (_web(Skew.TOO_FEW, None, 1.0), "a single endpoint gets everything"),
        (_web(Skew.TOO_FEW, None, 0.5, 0.5), "too few connections to judge the shares"),
        (_web(Skew.FITS, 0.25, 0.5, 0.5), "connections fit the shares (by chance alone: 25.0 %)"),
        (
            _web(Skew.UNEXPLAINED, 0.0, 0.5, 0.5),
            "connections do not fit the shares, and no rule says why (by chance alone: less than 0.1 %)",
        ),
    ],
)
def test_judgement_is_a_sentence(traffic: ServiceTraffic, sentence: str) -> None:
    """The same wherever it is read; nothing is judged where there is nothing to share."""
    assert sentence == traffic.sentence
