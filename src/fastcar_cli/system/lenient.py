"""A file that keeps its first error, for writers that take none."""

from __future__ import annotations

import io
from typing import Any


class LenientFile(io.FileIO):
    """A file whose first error is kept, not raised."""

    error: OSError | None = None

    def write(self, data: Any) -> int:
        """As `FileIO.write`; after an error all counts as written."""
        try:
            return super().write(data)
        except OSError as e:
            self.error = self.error or e
            return memoryview(data).nbytes
