"""Simulated runs: drivers, tasks, storage, clock and sinks in one thread, decided by one seed."""
