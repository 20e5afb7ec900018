"""
What shape the rules of one service port have: which scheduler, and whether its endpoints are grouped.

Pure functions of the service port, the number of its endpoints and the configuration, so that every node and every run
decides alike.
"""

from kproxy_ipt.config.model import Balance, Scheduler
from kproxy_ipt.state.model import ServicePort

GROUPED_ABOVE_ENDPOINTS = 1500
"""
With more endpoints than this in one chain, `auto` balances in groups.

A new connection walks half of a row: with 1,500 endpoints some 70 us were measured (either backend) instead of 16 us in
groups, with 5,000 endpoints 140 to 310 us instead of 20 us; and one changed endpoint writes the whole row. Lower would
be of use too, but up to here rules are those of kube-proxy to the letter, which was recorded up to 1,000 endpoints.
"""


def scheduler_of(service_port: ServicePort, configured: Scheduler) -> Scheduler:
    """Who gets the next connection: what the Service wishes, or else what is configured."""
    return service_port.scheduler or configured


def is_grouped(scheduler: Scheduler, endpoint_count: int, balance: Balance) -> bool:
    """Whether a chain with *endpoint_count* endpoints leads to groups; a rotation is exact only in one row."""
    if scheduler is not Scheduler.RANDOM:
        return False
    if balance is Balance.AUTO:
        return endpoint_count > GROUPED_ABOVE_ENDPOINTS
    return balance is Balance.GROUPED
