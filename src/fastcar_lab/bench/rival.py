"""What a program that is timed against ours is to the benchmark."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any, Protocol

from fastcar_cli.models.decoder import DecoderSpec
from fastcar_cli.system.plugins import need


class Run(Protocol):
    """Makes passes from the context on, and takes them back."""

    def __call__(self, count: int, window: int = 1) -> None:
        """`count` passes of `window` tokens of every row."""


class Session(Protocol):
    """Runs a LLaMA of random weights."""

    def __call__(
        self,
        rival: Rival,
        spec: DecoderSpec,
        *,
        layers: int,
        kind: str,
        rows: int,
        context: int,
        passes: int,
        threads: int,
    ) -> AbstractContextManager[tuple[Run, int]]:
        """A function that makes passes at a context length, `passes` tokens of a row at most, and the bytes of a pass.
        Raises RequestError where packages are missing, RunError where the program fails.
        """


@dataclass(frozen=True)
class Rival:
    """Its name, its package and module, its formats by the name of ours, what runs it, and how its module names the
    instruction set it is built for ("" where it takes what the CPU has).
    """

    name: str
    package: str
    module: str
    formats: Mapping[str, tuple[str, ...]] = field(hash=False)
    session: Session
    build: Callable[[Any], str] = lambda api: ""

    @property
    def version(self) -> str:
        """Of its package, and the build. Raises RequestError where it is missing."""
        api = need(self.module, f"the comparison with {self.name}")
        return f"{version(self.package)} {self.build(api)}".rstrip()


def runs_of(
    rivals: Iterable[Rival], spec: DecoderSpec, stack: ExitStack, **options: int
) -> Iterator[tuple[str, str, Run, int]]:
    """For every rival and format: its name, our format, its run and the bytes of a pass. `options` as `Session` has
    them; the stack ends the sessions.
    """
    for rival in rivals:
        for form, kinds in rival.formats.items():
            for kind in kinds:
                run, size = stack.enter_context(rival.session(rival, spec, kind=kind, **options))
                yield f"{rival.name} {kind}", form, run, size
