from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.fixtures import default_signals, no_fsync  # noqa: F401
from support.vila_u import small

from fastcar_lab.dummy.vila_u import write_configs, write_tokenizer, write_weights


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Path]:
    """A tiny checkpoint of the official layout whose widths int4 takes; its MLPs have 48, no multiple of 32."""

    def call(name: str = "checkpoint", dtype: torch.dtype = torch.float32, **changes: Any) -> Path:
        folder = tmp_path / name
        write_configs(folder, **small(**{"tower__rqtransformer__embed_dim": 32, **changes}))
        write_tokenizer(folder)
        write_weights(folder, dtype, shards=2)
        return folder

    return call
