"""
The image, built once in each process of tests.

Neighbours are handed to one process in large pieces, so that in a run of all tests one of them builds, as a rule.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from kproxy_ipt.testing.image import PROGRAMS, Image, built_image

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Image]:
    """The image of this checkout, made from nothing."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")
    with built_image(ROOT, tmp_path_factory.mktemp("image")) as image:
        yield image
