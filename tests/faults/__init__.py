"""Faults that tests inject into processes of Turnback, from outside of its code."""

from pathlib import Path

from faults.turnback_faults import POINTS, Point

DIRECTORY = str(Path(__file__).parent)
"""Put in front of PYTHONPATH, it lets a process and its Python children die at named points."""

__all__ = ["DIRECTORY", "POINTS", "Point"]
