"""
The Ruleset: tables, chains and rules as values, and everything that turns text into them and back.

It is the same type whether it was built from objects, parsed from `iptables-save`, or read through libiptc.
"""
