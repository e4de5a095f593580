"""Turnback beside the engines its users would otherwise choose."""
