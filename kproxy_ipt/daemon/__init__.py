"""Runs of a sync, and what surrounds them."""
