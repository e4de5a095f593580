"""Turnback beside the engines its users would otherwise choose: `python -m benchmarks.run --help`."""
