"""Fixtures of all tests of this folder."""

from support.fixtures import machine_measured_once  # noqa: F401
