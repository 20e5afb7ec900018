"""Benchmarks, each beside a floor that was measured in the same run: `python -m bench --help`."""
