"""What a video of the table world shows, read from its pixels alone, and whether it is what the prompt requested."""

from fastcar_lab.worlds.table.analyser.judge import judge
from fastcar_lab.worlds.table.analyser.verdict import analyse

__all__ = ["analyse", "judge"]
