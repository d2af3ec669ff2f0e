"""Fixtures of all tests of this folder."""

from support.fixtures import default_signals, no_fsync, short_collections  # noqa: F401
