"""What a video of the table world shows, read from its pixels alone, and whether it is what the prompt requested."""

from fastcar_lab.worlds.table.analyser.judge import judge, shares
from fastcar_lab.worlds.table.analyser.verdict import TrackedObject, Verdict, analyse

__all__ = ["TrackedObject", "Verdict", "analyse", "judge", "shares"]
