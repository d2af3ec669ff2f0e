"""What a shell completes as the value of an option; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Callable, Collection

Complete = Callable[[str], list[str]]
"""Values that begin with what is typed."""


def words(allowed: Callable[[], Collection[str]] | Collection[str]) -> Complete:
    """Complete one of these, also as the last of several with commas between them."""

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",")
        known = allowed() if callable(allowed) else allowed
        return [f"{before}{comma}{word}" for word in known if word.startswith(last)]

    return complete


def models() -> list[str]:
    """Models that have names."""
    from fastcar_cli.checkpoints.names import BUNDLED, REPOSITORIES

    return [*BUNDLED, *REPOSITORIES]


def configurations() -> list[str]:
    """Shipped configurations."""
    from fastcar_cli.config.presets import presets

    return presets()


def accelerators() -> list[str]:
    """Shipped accelerators."""
    from fastcar_cli.config.presets import fpga_presets

    return fpga_presets()


def assignments() -> list[str]:
    """Keys of the configuration as `--set` begins with them."""
    from fastcar_cli.config.run_config import settings

    return [f"{key}=" for key in settings()]
