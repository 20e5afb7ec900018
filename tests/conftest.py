"""
What holds for all tests: generated examples are the same ones in every run, on whatever machine, however busy it is.

So a test that fails is one that a change broke. `pytest --hypothesis-profile=chance` looks at other examples each time.
"""

from hypothesis import HealthCheck, settings

_ON_ANY_MACHINE = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

settings.register_profile("same", _ON_ANY_MACHINE, derandomize=True)
settings.register_profile("chance", _ON_ANY_MACHINE)
settings.load_profile("same")
