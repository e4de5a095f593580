"""Puts this directory on the path, for the support modules in it."""
