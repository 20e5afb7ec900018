"""What tells how a daemon is doing: health, contact with the API, counted connections, metrics, the status page."""

from functools import partial

from kproxy_ipt.daemon.api_status import ApiStatus
from kproxy_ipt.daemon.family_loop import Clocks
from kproxy_ipt.daemon.health import ProxyHealth
from kproxy_ipt.daemon.health_pages import HealthPages
from kproxy_ipt.daemon.http import Server, Servers
from kproxy_ipt.daemon.log import Log
from kproxy_ipt.daemon.metrics import Metrics, accounting
from kproxy_ipt.daemon.metrics_pages import MetricsPages
from kproxy_ipt.daemon.settings import Settings
from kproxy_ipt.daemon.status.scene import Watched
from kproxy_ipt.daemon.status.server import StatusServer
from kproxy_ipt.daemon.traffic import Background, Traffic
from kproxy_ipt.objects.events import Kind


class Instruments:
    """
    The instruments of one daemon; `close` them.

    Attributes:
        health: Whether rules are up to date.
        api: When the API was heard last.
        traffic: Counts connections, unless the configuration says that nothing does.
        metrics: What is counted.
        status: The status page, if there is to be one.
    """

    def __init__(self, settings: Settings, log: Log, clocks: Clocks, *, in_background: Background) -> None:
        """
        Nothing is opened yet.

        Args:
            settings: See there.
            log: Told what happens.
            clocks: Time.
            in_background: Runs work beside everything else.
        """
        config, netns = settings.config, settings.target.netns
        self._settings, self._log, self._clocks = settings, log, clocks
        self.health = ProxyHealth(
            settings.target.families,
            sync_period_s=config.iptables.sync_period_s,
            clock=clocks.monotonic,
            wall_clock_ns=clocks.wall_ns,
        )
        self.api = ApiStatus(Kind, clock=clocks.monotonic, wall_clock_ns=clocks.wall_ns)
        self.traffic = Traffic(
            config.connection_metrics,
            log,
            netns=netns,
            in_background=in_background,
            unix_s=clocks.unix_s,
            monotonic=clocks.monotonic,
        )
        self.metrics = Metrics(
            oldest_unwritten_s=self.health.oldest_unwritten_s,
            api_silence_s=lambda: {str(kind): silence for kind, silence in self.api.silence_s().items()},
            nfacct_counters=partial(accounting, netns),
            connections=self.traffic.sums,
        )
        self.status = StatusServer(config.status_bind_address, netns=netns, unix_s=clocks.unix_s)

    def servers(self, watched: Watched) -> Servers:
        """All servers that the configuration wants, to be started; *watched* is what the status page shows."""
        config = self._settings.config
        health_pages = HealthPages(self.health, self.metrics, self.api)
        metrics_pages = MetricsPages(self.metrics, config, self._settings.process, wall_clock_ns=self._clocks.wall_ns)
        return Servers(
            (
                Server("healthz", config.healthz_bind_address, health_pages.respond),
                Server("metrics", config.metrics_bind_address, metrics_pages.respond, self.traffic.prepare),
                *self.status.servers(watched, self._log, self.traffic),
            ),
            netns=self._settings.target.netns,
            hard_fail=config.bind_address_hard_fail,
            log=self._log,
        )

    def close(self) -> None:
        """Finish what they are at."""
        self.status.close()
        self.traffic.close()
