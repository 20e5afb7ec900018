"""Packets walking a Ruleset: which rules they meet, what becomes of them, and how often, without any kernel."""
