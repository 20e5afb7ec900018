"""
Bad input for as long as one likes: texts and objects that are nearly right, through every reader and to rules.

By itself inputs come of a counted seed, so that each is made again by `--first SEED --count 1`. With `--guided` the
fuzzer atheris (`pip install atheris`) chooses the bytes that mutations are drawn from by the branches they reach.

Usage: python bench/fuzz_texts.py [--seconds 60] [--first 0] [--count N] [--target all|objects|config|saves|pipeline]
       [--guided]
"""

import argparse
import importlib
import json
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import yaml

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.encode import encode_config
from kproxy_ipt.config.model import Config
from kproxy_ipt.errors import ConfigError, RulesetError
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import decode_documents
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.rules.build import build_ruleset, with_base_chains
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.state.model import MachineFacts
from kproxy_ipt.state.snapshot import node_facts, take_snapshot
from kproxy_ipt.testing.hostile import CANARY, Tree, mutated_bytes, mutated_lines, mutated_tree

_TESTS = Path(__file__).parents[1] / "tests"
_LARGE_BYTES = 20_000


def _seeds(pattern: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted(_TESTS.glob(pattern)) if path.stat().st_size < _LARGE_BYTES]


class Targets:
    """What is fuzzed: each takes a source of chance, and raises if a promise is broken."""

    def __init__(self) -> None:
        self._objects = _seeds("golden/*/objects.yaml")
        self._trees: list[list[Tree]] = [list(yaml.safe_load_all(text)) for text in self._objects]
        self._configs = [*_seeds("golden/*/config.yaml"), *_seeds("config/*.conf")]
        self._config_trees: list[Tree] = [yaml.safe_load(text) for text in self._configs]
        self._saves = [text.decode() for text in (*_seeds("ruleset/saves/*.txt"), *_seeds("golden/*/ip*tables.txt"))]

    def by_name(self) -> Mapping[str, Callable[[Random], None]]:
        """All of them."""
        return {"objects": self.objects, "config": self.config, "saves": self.saves, "pipeline": self.pipeline}

    def objects(self, random: Random) -> None:
        """Damaged texts give objects or printable findings."""
        _read(mutated_bytes(random.choice(self._objects), random))

    def config(self, random: Random) -> None:
        """Damaged configurations are refused, or come back from their own text."""
        text = mutated_bytes(random.choice(self._configs), random)
        if random.random() < 0.5:
            text = json.dumps(mutated_tree(random.choice(self._config_trees), random)).encode()
        try:
            config = decode_config(text, "config").config
        except ConfigError:
            return
        if decode_config(encode_config(config).encode(), "again").config != config:
            raise AssertionError("the configuration does not come back")

    def saves(self, random: Random) -> None:
        """Damaged saves are refused, or come back from their own text."""
        family = random.choice(list(Family))
        try:
            ruleset = parse_save(mutated_lines(random.choice(self._saves), random), family)
        except RulesetError:
            return
        if parse_save(render_save(ruleset), family) != ruleset:
            raise AssertionError("the rules do not come back")

    def pipeline(self, random: Random) -> None:
        """Rules of odd objects hold nothing odd, and come back from their own text."""
        family = random.choice(list(Family))
        trees = mutated_tree([*random.choice(self._trees), *random.choice(self._trees)], random, most=8)
        listed = {"kind": "List", "apiVersion": "v1", "items": trees}
        objects = _read(json.dumps(listed).encode())
        snapshot = take_snapshot(objects, family, node_facts(objects.nodes, "node1"))
        config = Config(cluster_cidrs=("10.244.0.0/16", "fd00:10:244::/56"))
        ruleset = with_base_chains(build_ruleset(snapshot, config, MachineFacts()))
        text = render_save(ruleset)
        if CANARY in text or parse_save(text, family) != ruleset:
            raise AssertionError("the rules hold what does not belong there")


def _read(text: bytes) -> Objects:
    objects = collect(decode_documents(text, "input"))
    odd = [finding for finding in objects.findings if not str(finding).isprintable()]
    if odd:
        raise AssertionError(f"a finding that breaks a line: {odd[0]!r}")
    return objects


class _OfBytes(Random):
    """Chance out of the bytes of a fuzzer, so that a changed byte is a changed decision; zeros where they end."""

    def __init__(self, octets: bytes) -> None:
        super().__init__(0)
        self._octets = octets
        self._place = 0

    def getrandbits(self, k: int, /) -> int:
        """The next *k* bits, in whole bytes."""
        size = (k + 7) // 8
        taken = self._octets[self._place : self._place + size].ljust(size, b"\0")
        self._place += size
        return int.from_bytes(taken, "little") & ((1 << k) - 1)

    def random(self) -> float:
        """A number from 0 to 1 out of two bytes."""
        return self.getrandbits(16) / 65536


def run_counted(targets: Mapping[str, Callable[[Random], None]], seconds: float, first: int, count: int) -> int:
    """Run seeds from *first* on, print each new place of failure once; the number of such places."""
    ends_s, seed, places = time.monotonic() + seconds, first, set[str]()
    while time.monotonic() < ends_s and seed - first < count:
        for name, target in targets.items():
            try:
                target(Random(seed))
            except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
                place = f"{name} {type(error).__name__} {traceback.extract_tb(error.__traceback__)[-1]}"
                if place not in places:
                    print(f"seed {seed}: {place}: {str(error)[:300]}")  # noqa: T201
                places.add(place)
        seed += 1
    print(f"{seed - first} seeds for each of {', '.join(targets)}: {len(places)} kinds of failure")  # noqa: T201
    return len(places)


def run_guided(targets: Mapping[str, Callable[[Random], None]], seconds: float) -> None:
    """Let atheris choose; it ends the process itself, with its own report."""
    atheris = importlib.import_module("atheris")

    def one_input(octets: bytes) -> None:
        for target in targets.values():
            target(_OfBytes(octets))

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:.0f}", "-max_len=64"], one_input)
    atheris.Fuzz()


def main() -> None:
    """Read the options, run, and end with code 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = Targets().by_name()
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=sys.maxsize)
    parser.add_argument("--target", choices=["all", *known], default="all")
    parser.add_argument("--guided", action="store_true")
    chosen = parser.parse_args()
    targets = known if chosen.target == "all" else {chosen.target: known[chosen.target]}
    if chosen.guided:
        run_guided(targets, chosen.seconds)
    sys.exit(bool(run_counted(targets, chosen.seconds, chosen.first, chosen.count)))


if __name__ == "__main__":
    main()
