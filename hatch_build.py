"""Build hook: the wheel holds the native kernels for the system it is built on.

Where they can't be built the package installs all the same, and says why where they are called.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_PACKAGE = "fastcar_cli/kernels/native"


def _builder(root: Path) -> Any:
    """The module that compiles; the package itself can't be imported here, as what it needs is not installed yet."""
    spec = importlib.util.spec_from_file_location("fastcar_build", root / "src" / _PACKAGE / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class NativeKernels(BuildHookInterface[Any]):
    """Puts the library into the wheel, in an editable install into the source tree."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, or note why not."""
        builder = _builder(Path(self.root))
        self._folder = tempfile.TemporaryDirectory()
        editable = version == "editable"
        folder = builder.FOLDER if editable else Path(self._folder.name)
        library, why = folder / builder.NAME, folder / builder.WHY_NOT
        for path in (library, why):
            path.unlink(missing_ok=True)
        try:
            tag = builder.build(library)
        except builder.BuildError as e:
            if "FASTCAR_WHEEL" in os.environ:  # a wheel for one system is for its library
                raise
            print(f"fastcar: the native kernels are not built: {e}", file=sys.stderr)
            why.write_text(f"{e}\n", encoding="utf-8")
            made = why
        else:
            # A system's own compiler builds for this system and those like it.
            tag = tag or sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"], build_data["tag"] = False, f"py3-none-{tag}"
            made = library
        if not editable:
            build_data["force_include"][str(made)] = f"{_PACKAGE}/{made.name}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel now."""
        self._folder.cleanup()
