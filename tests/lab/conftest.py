"""Fixtures of all tests of this folder."""

from support.fixtures import default_signals, machine_measured_once, no_fsync, short_collections  # noqa: F401
