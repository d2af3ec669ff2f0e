from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from support.fixtures import no_fsync, short_collections  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def _kept_runtime(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Verilator's own part is compiled once for all tests of a process, in CI for all that it runs."""
    with pytest.MonkeyPatch.context() as patch:
        if "RUNTIME" not in os.environ:
            patch.setenv("RUNTIME", str(tmp_path_factory.mktemp("runtime")))
        yield
