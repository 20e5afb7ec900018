"""What mutations start from: recorded objects, answers of a real API server, configurations and saved rules."""

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import yaml

from kproxy_ipt.testing.hostile import Tree

T = TypeVar("T")

_TESTS = Path(__file__).parents[1]
_LARGE_BYTES = 20_000
"""Larger seeds are slow to mutate and hold nothing that smaller ones lack."""


def _small(pattern: str) -> list[bytes]:
    found = [path.read_bytes() for path in sorted(_TESTS.glob(pattern))]
    small = [text for text in found if len(text) < _LARGE_BYTES]
    assert small, pattern
    return small


def _picker(seeds: list[T]) -> Callable[[Random], T]:
    """A function, since a failing example prints its arguments, and these are many."""

    def pick(random: Random) -> T:
        return random.choice(seeds)

    return pick


@pytest.fixture(scope="session")
def pick_object_text() -> Callable[[Random], bytes]:
    """YAML of recorded cases, and JSON bodies of an API server's answers."""
    bodies = [text.partition(b"\r\n\r\n")[2] or text.partition(b"\n\n")[2] for text in _small("api/*.http")]
    return _picker([*_small("golden/*/objects.yaml"), *(body for body in bodies if body)])


@pytest.fixture(scope="session")
def pick_object_tree() -> Callable[[Random], list[Tree]]:
    """The objects of each recorded case, as plain values."""
    return _picker([list(yaml.safe_load_all(text)) for text in _small("golden/*/objects.yaml")])


@pytest.fixture(scope="session")
def pick_config_text() -> Callable[[Random], bytes]:
    """Configurations of recorded cases, and kubeadm's own."""
    return _picker([*_small("golden/*/config.yaml"), *_small("config/*.conf")])


@pytest.fixture(scope="session")
def pick_saved_text() -> Callable[[Random], str]:
    """Real output of save programs: of other software, and of recorded cases."""
    return _picker([text.decode() for text in (*_small("ruleset/saves/*.txt"), *_small("golden/*/ip*tables.txt"))])


@pytest.fixture(scope="session")
def pick_config_tree() -> Callable[[Random], Tree]:
    """Configurations that decide about rules, as plain values."""
    return _picker([yaml.safe_load(text) for text in _small("golden/*/config.yaml")])
