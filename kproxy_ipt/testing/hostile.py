"""
Bad input on purpose: values that try to get out of their field, and mutations of texts and trees.

All of it is drawn from a `random.Random` that the caller makes: of a seed where a run is to be repeated, of a fuzzer's
bytes or of hypothesis where failures are to be shrunk. What is mutated is real: recorded objects, configurations and
saved rules, so that most of an input is right and the rest is reached.
"""

import json
from collections.abc import Iterator, Sequence
from random import Random
from typing import cast

Tree = dict[str, "Tree"] | list["Tree"] | str | int | float | bool | None
"""What JSON can hold."""

CANARY = "zzinjected"
"""Stands in every hostile text that would do harm as it is: no rule may ever hold it outside of a comment."""

HOSTILE_TEXTS = (
    "",
    " ",
    "\t",
    '"',
    "\\",
    "'",
    "-",
    "!",
    "#",
    "%s%n",
    "..",
    "None",
    "primary",
    "tcp",
    "ACCEPT",
    "-j ACCEPT",
    "KUBE-SERVICES",
    "KUBE-MARK-MASQ",
    "--to-destination",
    "::1%eth0",
    "0x7f000001",
    "127.1",
    "1.2.3.4\n",
    "010.0.0.010",
    "::ffff:10.0.0.1",
    "0.0.0.0/0 ",
    "::/0",
    "::",
    "0.0.0.0",
    "127.0.0.1",
    "255.255.255.255",
    "fe80::1",
    "224.0.0.1",
    "10.0.0.1/33",
    "10.0.0.1,10.0.0.2",
    "\u202e\u2028",
    "\x00\x1b[2J",
    "\ud800",
    "١٢٣",
    "😀",
    "ｗｅｂ",
    f"{CANARY}\n-A INPUT -j ACCEPT",
    f"{CANARY}\nCOMMIT\n*filter\n-F\nCOMMIT",
    f'{CANARY}" -j ACCEPT -m comment --comment "',
    f"{CANARY} -j ACCEPT",
    f"10.0.0.1 -j {CANARY}",
    f"10.0.0.0/8 -j {CANARY}",
    f"eth0 -j {CANARY}",
    f"$({CANARY})",
    f"`{CANARY}`;{CANARY}",
    CANARY * 1000,
    "1" * 10_000,
    "a-" * 127,
)
"""Texts for any field: empty, quotes, options, lines, addresses of odd forms, other scripts, very long."""

HOSTILE_NUMBERS = (-1, 0, 1, 65535, 65536, 2**31, 2**63, 2**64, 10**40, 0.5, -0.0, 1e300)

_BITS = tuple(
    b"\"\\'-\n\r\t{}[]:,&*!#%|> \x00\xff\xc3\xed\xa0\x80 0 1 -j --- << null true 1e999 \xef\xbb\xbf".split(b" ")
)


def hostile_value(random: Random) -> Tree:
    """A value that fits few fields."""
    choices: tuple[Sequence[Tree], ...] = (HOSTILE_TEXTS, HOSTILE_TEXTS, HOSTILE_NUMBERS, (None, True, False, [], {}))
    return random.choice(random.choice(choices))


def mutated_tree(tree: Tree, random: Random, *, most: int = 4) -> Tree:
    """A copy of *tree* in which up to *most* places were replaced, removed, doubled, renamed or copied."""
    copied = cast("Tree", json.loads(json.dumps(tree)))
    for _ in range(random.randint(1, most)):
        places = list(_places(copied))
        if not places:
            return hostile_value(random)
        _mutate(*random.choice(places), random, places)
    return copied


_Parent = dict[str, Tree] | list[Tree]
_Place = tuple[_Parent, str | int]


def _places(tree: Tree) -> Iterator[_Place]:
    """Every field and every entry of a list, at any depth."""
    if isinstance(tree, dict):
        for name, inner in tree.items():
            yield tree, name
            yield from _places(inner)
    elif isinstance(tree, list):
        for index, inner in enumerate(tree):
            yield tree, index
            yield from _places(inner)


def _mutate(parent: _Parent, key: str | int, random: Random, places: Sequence[_Place]) -> None:
    kind = random.randrange(8)
    if kind == 0:
        del parent[key]  # type: ignore[arg-type]
    elif kind == 1 and isinstance(parent, list):
        parent.append(_copy(parent[cast("int", key)]))
    elif kind == 1 and isinstance(parent, dict):
        parent[str(random.choice(HOSTILE_TEXTS))] = parent.pop(str(key))
    elif kind == 2:
        other, place = random.choice(places)
        found = other.get(str(place)) if isinstance(other, dict) else _entry(other, place)
        parent[key] = _copy(found)  # type: ignore[index]
    else:
        parent[key] = hostile_value(random)  # type: ignore[index]


def _entry(entries: list[Tree], place: str | int) -> Tree:
    """Earlier mutations may have made a list shorter."""
    return entries[place] if isinstance(place, int) and place < len(entries) else None


def _copy(tree: Tree) -> Tree:
    return cast("Tree", json.loads(json.dumps(tree)))


def mutated_bytes(text: bytes, random: Random, *, most: int = 8) -> bytes:
    """*text* with up to *most* places cut out, doubled, overwritten or filled with what parsers trip over."""
    found = bytearray(text)
    for _ in range(random.randint(1, most)):
        start = random.randint(0, len(found))
        end = min(len(found), start + random.choice((0, 1, 2, 8, 100)))
        kind = random.randrange(4)
        if kind == 0:
            found[start:end] = b""
        elif kind == 1:
            found[start:start] = found[start:end]
        elif kind == 2:
            found[start:end] = random.choice(_BITS)
        else:
            hostile = random.choice(HOSTILE_TEXTS)[:200]
            found[start:end] = hostile.encode("utf-8", "surrogatepass")
    return bytes(found)


def mutated_lines(text: str, random: Random, *, most: int = 6) -> str:
    """*text* with lines removed, doubled or moved, and words replaced, doubled, quoted or taken from other lines."""
    lines = text.split("\n")
    for _ in range(random.randint(1, most)):
        index = random.randrange(len(lines))
        kind = random.randrange(6)
        if kind == 0:
            lines[index : index + 1] = [] if len(lines) > 1 else [""]
        elif kind == 1:
            lines.insert(random.randrange(len(lines)), lines[index])
        else:
            lines[index] = _mutated_line(lines[index], random.choice(lines), random)
    return "\n".join(lines)


def _mutated_line(line: str, other: str, random: Random) -> str:
    words, others = line.split(" "), other.split(" ")
    index = random.randrange(len(words))
    kind = random.randrange(5)
    if kind == 0:
        words[index : index + 1] = []
    elif kind == 1:
        words.insert(index, words[index])
    elif kind == 2:
        words[index] = random.choice(others)
    elif kind == 3:
        words[index] = f'"{words[index]}"'
    else:
        words[index] = random.choice(HOSTILE_TEXTS)
    return " ".join(words)
