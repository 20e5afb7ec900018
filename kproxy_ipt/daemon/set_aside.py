"""What a report says about a Service that the kernel refuses."""

import msgspec


class SetAside(msgspec.Struct, frozen=True):
    """
    A Service that was left with what it had, since the kernel refuses its rules.

    Attributes:
        service: Namespace and name: `shop/web`.
        reason: What the kernel or the program said, and the rule where it named one.
        stays: Whether earlier rules of it stay in force.
    """

    service: str
    reason: str
    stays: bool

    @property
    def rules(self) -> str:
        """What the Service has now."""
        return "the last good ones stay" if self.stays else "none"
