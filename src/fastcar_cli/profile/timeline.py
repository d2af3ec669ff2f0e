"""A torch.profiler timeline of decode steps, for Perfetto."""

from __future__ import annotations

from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from fastcar_cli.errors import RunError
from fastcar_cli.profile.profiler import Shape, decode_at


def write_timeline(file: Path, shape: Shape, rows: int, seq: int) -> None:
    """Record two steps at a context length. Raises RunError where the file can't be written."""
    running = decode_at(shape, rows, seq, 4)
    for _ in range(3):
        next(running)
    activities = [ProfilerActivity.CPU]
    if shape.network.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities) as recording:
        next(running)
        next(running)
    try:
        recording.export_chrome_trace(str(file))
    except (OSError, RuntimeError) as e:
        raise RunError(f"{file} could not be written: {e}") from None
    if not file.exists():
        raise RunError(f"{file} could not be written")
