"""`render`: the same bytes for the same objects, without touching or needing anything."""

import functools
import random
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from click.testing import Result

from kproxy_ipt.ruleset.canonical import canonical

Invoke = Callable[..., Result]
Program = Callable[..., subprocess.CompletedProcess[str]]

_NODE = ("--hostname-override", "n1")


@pytest.fixture
def shuffled(examples: Path, tmp_path: Path) -> Path:
    """The examples in other files and another order, endpoints of slices included."""
    documents = [found for path in examples.iterdir() for found in yaml.safe_load_all(path.read_text())]
    dice = random.Random(7)
    dice.shuffle(documents)
    folder = tmp_path / "shuffled"
    folder.mkdir()
    for number, document in enumerate(documents):
        dice.shuffle(document.get("endpoints", []))
        (folder / f"{dice.random()}-{number}.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return folder


@pytest.mark.parametrize("form", ["restore", "save", "canonical"])
def test_order_of_the_input_does_not_matter(form: str, invoke: Invoke, examples: Path, shuffled: Path) -> None:
    """Other files, other order of documents and endpoints: the same bytes."""
    first, second = (invoke("render", "--from", path, *_NODE, "--form", form) for path in (examples, shuffled))

    assert first.exit_code == 0
    assert first.stdout.count("KUBE-SVC-") > 6
    assert first.stdout == second.stdout


def test_files_may_be_named_in_any_order(invoke: Invoke, examples: Path) -> None:
    """`--from` can be given several times; the order of files does not matter either."""
    paths = sorted(examples.iterdir())
    options = [[word for path in order for word in ("--from", path)] for order in (paths, paths[::-1])]
    first, second = (invoke("render", *some, *_NODE) for some in options)

    assert first.stdout == second.stdout == invoke("render", "--from", examples, *_NODE).stdout


def test_each_family_has_a_heading_unless_it_is_alone(invoke: Invoke, examples: Path) -> None:
    """The text of both families is that of each, with a comment line in front."""
    both, ipv4, ipv6 = (
        invoke("render", "--from", examples, *_NODE, "--family", family).stdout for family in ("both", "ipv4", "ipv6")
    )

    assert both == f"# ipv4\n{ipv4}# ipv6\n{ipv6}"
    assert "fd00:10:96::80" not in ipv4
    assert "10.96.0.80" not in ipv6


def test_canonical_form_is_that_of_the_save_form(invoke: Invoke, examples: Path) -> None:
    """The two forms say the same."""
    save, form = (
        invoke("render", "--from", examples, *_NODE, "--family", "ipv4", "--form", name).stdout
        for name in ("save", "canonical")
    )

    assert canonical(save) == form


@pytest.mark.parametrize("part", ["nfacct", "random-fully", "addrtype", "statistic"])
def test_part_that_the_machine_lacks_is_left_out(invoke: Invoke, examples: Path, part: str) -> None:
    """`--without` takes matches and options away that the examples use otherwise."""
    whole, rules = (
        invoke("render", "--from", examples, *_NODE, *options).stdout for options in ((), ("--without", part))
    )

    assert part in whole
    assert part not in rules
    assert "-j KUBE-NODEPORTS" in rules


def test_node_addresses_can_be_given(invoke: Invoke, examples: Path) -> None:
    """Node ports restricted to a range answer on the addresses named; a text that is none is wrong usage."""
    options = ("--from", examples, *_NODE, "--family", "ipv4", "--nodeport-addresses", "192.0.2.0/24")
    rules = invoke("render", *options, "--node-address", "192.0.2.10", "--node-address", "198.51.100.1").stdout

    assert "-d 192.0.2.10/32 " in rules
    assert "198.51.100.1" not in rules
    assert invoke("render", *options, "--node-address", "n1").exit_code == 2


def test_json_holds_every_chain(invoke: Invoke, examples: Path) -> None:
    """The object maps family, table and chain to the lines of the save form."""
    options = ("render", "--from", examples, *_NODE)
    save = invoke(*options, "--family", "ipv4", "--form", "save").stdout
    document = yaml.safe_load(invoke(*options, "--output", "yaml").stdout)

    lines = [line for table in document["families"]["ipv4"].values() for chain in table.values() for line in chain]
    assert sorted(lines) == sorted(line for line in save.splitlines() if line.startswith("-A "))


@pytest.mark.kernel
def test_needs_neither_iptables_nor_root(program: Program, examples: Path, tmp_path: Path) -> None:
    """The same bytes without any iptables program, and for the user nobody."""
    (tmp_path / "empty").mkdir()
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
    run = functools.partial(program, "render", "--from", examples, *_NODE)
    texts = [run().stdout, run(sbin=tmp_path / "empty").stdout, run(prefix=nobody).stdout]

    assert texts[0].startswith("# ipv4\n*filter\n")
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.kernel
def test_restore_program_makes_of_it_what_sync_makes(
    program: Program, invoke: Invoke, lab: tuple[str, ...], netns: str, saved: Callable[[str], str]
) -> None:
    """`render | iptables-restore --noflush` and `sync --once` end in the same rules."""
    assert invoke("sync", "--once", *lab).exit_code == 0
    synced = saved(netns)
    assert invoke("cleanup", "--netns", netns).exit_code == 0
    for family, word in (("ipv4", "iptables"), ("ipv6", "ip6tables")):
        text = program("render", *lab[:-4], "--family", family).stdout
        restore = ["ip", "netns", "exec", netns, f"{word}-nft-restore", "--noflush"]
        subprocess.run(restore, input=text, text=True, check=True)

    assert canonical_of(saved(netns)) == canonical_of(synced)


def canonical_of(text: str) -> str:
    """Without the canary, which only marks tables that came into being with a sync."""
    return "".join(
        f"{line}\n" for line in sorted(text.splitlines()) if "CANARY" not in line and not line.startswith("*")
    )
