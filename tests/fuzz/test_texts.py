"""Texts that are nearly right: every problem is a finding or an error of ours, never anything else."""

import json
from collections.abc import Callable
from random import Random

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from kproxy_ipt.addresses import Family
from kproxy_ipt.config.build import DecodedConfig
from kproxy_ipt.config.decode import decode_config
from kproxy_ipt.config.encode import encode_config
from kproxy_ipt.errors import ConfigError, RulesetError
from kproxy_ipt.objects.collect import collect
from kproxy_ipt.objects.decode import decode_documents
from kproxy_ipt.objects.model import Objects
from kproxy_ipt.ruleset.parse import parse_save
from kproxy_ipt.ruleset.reading import read_save
from kproxy_ipt.ruleset.render import render_save
from kproxy_ipt.ruleset.scan import scan_save
from kproxy_ipt.testing.hostile import Tree, mutated_bytes, mutated_lines, mutated_tree

RANDOMS = st.randoms(use_true_random=False)
EXAMPLES = settings(max_examples=300, deadline=None, derandomize=True, database=None)  # chance is for the soak


def _read(text: bytes) -> Objects:
    objects = collect(decode_documents(text, "input"))
    assert all(str(finding).isprintable() for finding in objects.findings)
    return objects


def _config(text: bytes) -> DecodedConfig | None:
    """The configuration, or None where it was refused with printable words."""
    try:
        return decode_config(text, "config.conf")
    except ConfigError as error:
        refusal = error
    assert all(problem.isprintable() for problem in refusal.problems), refusal.problems
    return None


@given(random=RANDOMS)
@EXAMPLES
def test_damaged_object_texts_give_objects_or_findings(
    random: Random, pick_object_text: Callable[[Random], bytes]
) -> None:
    """Bytes cut out, doubled or overwritten."""
    text = mutated_bytes(pick_object_text(random), random)

    assert isinstance(_read(text), Objects)


@given(random=RANDOMS)
@EXAMPLES
def test_objects_with_wrong_values_give_objects_or_findings(
    random: Random, pick_object_tree: Callable[[Random], list[Tree]]
) -> None:
    """Well-formed JSON and YAML in which fields hold what they should not; both are read alike."""
    trees = mutated_tree(pick_object_tree(random), random)
    as_json = json.dumps({"kind": "List", "apiVersion": "v1", "items": trees}).encode()
    as_yaml = yaml.safe_dump({"kind": "List", "apiVersion": "v1", "items": trees}).encode("utf-8", "surrogatepass")

    assert isinstance(_read(as_json), Objects)
    assert isinstance(_read(as_yaml), Objects)


@given(random=RANDOMS)
@EXAMPLES
def test_damaged_configurations_are_read_or_refused(
    random: Random, pick_config_text: Callable[[Random], bytes]
) -> None:
    """Bytes cut out, doubled or overwritten."""
    decoded = _config(mutated_bytes(pick_config_text(random), random))

    assert decoded is None or isinstance(decoded, DecodedConfig)


@given(random=RANDOMS)
@EXAMPLES
def test_configurations_with_wrong_values_are_read_or_refused(
    random: Random, pick_config_text: Callable[[Random], bytes]
) -> None:
    """What is accepted is what its own text says when it is written out and read again."""
    tree = mutated_tree(yaml.safe_load(pick_config_text(random)), random)
    decoded = _config(json.dumps(tree).encode())

    if decoded is not None:
        assert decode_config(encode_config(decoded.config).encode(), "again").config == decoded.config


@given(random=RANDOMS, family=st.sampled_from(Family))
@EXAMPLES
def test_damaged_saves_are_read_or_refused(
    random: Random, family: Family, pick_saved_text: Callable[[Random], str]
) -> None:
    """Lines and words of real saves changed: what is accepted comes back from its own text as it was."""
    text = mutated_lines(pick_saved_text(random), random)
    try:
        ruleset = parse_save(text, family)
    except RulesetError:
        return

    assert parse_save(render_save(ruleset), family) == ruleset


@given(random=RANDOMS, family=st.sampled_from(Family))
@EXAMPLES
def test_damaged_saves_are_scanned_or_refused(
    random: Random, family: Family, pick_saved_text: Callable[[Random], str]
) -> None:
    """The quick reader, and the one that reads rules when they are asked for."""
    text = mutated_lines(pick_saved_text(random), random)
    for read in (scan_save, lambda saved: render_save(read_save(saved, family))):
        try:
            assert read(text) is not None
        except RulesetError:
            continue
