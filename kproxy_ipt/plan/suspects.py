"""
Which Services does the kernel refuse? By halves, where it does not say.

A trial is a real write of the rules of some of the suspects, while the others keep what they have. So the answer is the
kernel's own, every trial that it takes is progress, and nothing has to be cleaned up. Decided against: `--test` (it
reads, and never asks the kernel), a scratch network namespace (making one needs CAP_SYS_ADMIN, which a container with
NET_ADMIN alone lacks, and it lacks whatever the real one refuses for), scratch chains (nothing leads to them, so the
kernel never sees a target in the wrong hook; the legacy backend writes them for real, so a crash leaves them behind).

One bad Service among 2,000 takes at most 14 trials, the first one without any suspect included; each further one as
many again at most.
"""

from collections.abc import Sequence

from kproxy_ipt.state.tracker import ServiceName


class Search:
    """
    A search among Services that were refused together.

    Attributes:
        trial: Services whose rules are to be written next, while all others of `untold` keep what they have. Empty at
            first: if the kernel refuses even that, none of the suspects is to blame.
        found: Those that are refused alone.
    """

    def __init__(self, suspects: Sequence[ServiceName]) -> None:
        """Begin with *suspects*; the order decides about which halves are made, and about nothing else."""
        self.trial: tuple[ServiceName, ...] = ()
        self.found: list[ServiceName] = []
        self._group = tuple(suspects)
        self._is_bad = True
        self._others: tuple[ServiceName, ...] = ()

    @property
    def untold(self) -> tuple[ServiceName, ...]:
        """Services about which nothing is known yet, *trial* included."""
        return (*self._group, *self._others)

    def taken(self) -> None:
        """The kernel took the trial."""
        self._group = self._group[len(self.trial) :]
        self._choose()

    def refused(self, name: ServiceName | None = None) -> bool:
        """
        The kernel refused the trial, because of *name* if it said so.

        Returns:
            Whether one of the suspects can be to blame; if not, the search is over.
        """
        if not self.trial or (name is not None and name not in self.trial):
            return False
        rest = self._group[len(self.trial) :]
        culprit = self.trial[0] if len(self.trial) == 1 else name
        if culprit is None:
            self._group, self._is_bad, self._others = self.trial, True, (*self._others, *rest)
        else:
            self.found.append(culprit)
            innocent = tuple(one for one in self.trial if one != culprit)
            self._group, self._others = (), (*self._others, *innocent, *rest)
        self._choose()
        return True

    def _choose(self) -> None:
        """A group that holds a bad one is tried by halves, what is known nothing of as a whole."""
        if not self._group:
            self._group, self._others, self._is_bad = self._others, (), False
        size = len(self._group)
        self.trial = self._group[: size // 2] if self._is_bad and size > 1 else self._group
