"""Files that appear whole or not at all, with errors that say which one."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from pathlib import Path

from fastcar_cli.errors import RunError


def write_whole(path: Path, data: bytes | str) -> None:
    """Write a file under a hidden name beside it and rename it. Raises RunError, leaving what was there."""
    raw = data.encode() if isinstance(data, str) else data
    temporary: Path | None = None
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name[:60]}-", dir=path.parent)
        temporary = Path(name)
        with os.fdopen(handle, "wb") as f:
            f.write(raw)
            f.flush()
            os.fsync(f.fileno())
        mask = os.umask(0)
        os.umask(mask)
        temporary.chmod(0o666 & ~mask)
        temporary.replace(path)
    except OSError as e:
        raise RunError(f"{path} could not be written: {e.strerror or e}", hint="what is finished is kept") from None
    finally:
        if temporary is not None:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)


def sha256_of(path: Path) -> str:
    """Hash of a file's bytes. Raises OSError."""
    digest = hashlib.sha256()
    with path.open("rb") as f:
        while block := f.read(2**20):
            digest.update(block)
    return digest.hexdigest()
