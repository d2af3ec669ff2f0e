"""A tiny checkpoint of the official layout of VILA-U."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from fastcar_lab.dummy.vila_u import FULL
from support.processes import Run


def small(**changes: Any) -> dict[str, Any]:
    """Configs of a tiny checkpoint with 4 tokens a frame."""
    configs = copy.deepcopy(FULL)
    configs["llm"] |= {
        "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 340,
    }  # fmt: skip
    tower = configs["tower"]
    tower["rqvaesiglip"] |= {"embed_dim": 32, "n_embed": 20, "code_shape": [2, 2, 3], "decoder_latent_shape": [2, 2]}
    tower["rqvaesiglip"]["ddconfig"] |= {
        "z_channels": 8,
        "ch": 32,
        "ch_mult": [1, 1],
        "num_res_blocks": 1,
        "resolution": 4,
    }
    tower["rqtransformer"] |= {
        "block_size": [2, 2, 3], "embed_dim": 16, "input_embed_dim_1": 32, "input_embed_dim_2": 32, "vocab_size": 20,
        "head": {"n_layer": 1, "block": {"n_head": 2}},
    }  # fmt: skip
    for key, value in changes.items():
        section: Any = configs
        *path, last = key.split("__")
        for name in path:
            section = section[name]
        section[last] = value
    return configs


def converted(run: Run, model: Path | str, name: str = "out", *options: str) -> Path:
    done = run("convert", str(model), "-o", name, *options)
    assert done.returncode == 0, done.stderr
    return Path(name).resolve()
