"""Settings from `fastcar.yaml` in the current folder and from variables named after keys."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Sequence

from fastcar_cli.config.run_config import GivenKey, Layer, file_layer, settings, value_of
from fastcar_cli.errors import RequestError

FILE = "fastcar.yaml"
PREFIX = "FASTCAR_"
OTHERS = ("FASTCAR_KERNELS_ISA", "FASTCAR_GOLDEN", "FASTCAR_GOLDEN_FRAMES", "FASTCAR_GOLDEN_LATENTS")
"""Variables of the native kernels and the tests, not settings."""


SERVICES = re.compile(r"_SERVICE_HOST$|_SERVICE_PORT(_\w+)?$|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?$")
"""Names of variables that Kubernetes sets for a service; `NAME_PORT` holds an address."""


def _of_service(name: str, text: str) -> bool:
    """Whether a variable describes a service called fastcar or fastcar-..., and is not a setting."""
    return SERVICES.search(name) is not None or (name.endswith("_PORT") and "://" in text)


def variable(key: str) -> str:
    """The variable of a dotted key: `FASTCAR_REPLAY_TAU` of `replay.tau`."""
    return PREFIX + key.upper().replace(".", "_")


def surroundings() -> list[Layer]:
    """What the file sets, and over it the environment. Raises RequestError for an unknown key, variable or value."""
    layers = [file_layer(FILE, FILE)] if os.path.lexists(FILE) else []
    keys = {variable(key): key for key in settings()}
    layer: Layer = []
    for name, text in sorted(os.environ.items()):
        # An empty variable counts as unset.
        if not name.startswith(PREFIX) or name in OTHERS or not text.strip() or _of_service(name, text):
            continue
        if name not in keys:
            last = name.removeprefix(PREFIX)
            ends = [k.removeprefix(PREFIX) for k in (*keys, *OTHERS[:1])]
            near = [e for e in ends if e.endswith(f"_{last}")] or difflib.get_close_matches(last, ends)
            hint = "FASTCAR_REPLAY_TAU sets replay.tau, and so on; `fastcar config --where` lists all keys"
            if near:
                hint = f"did you mean {' or '.join(PREFIX + e for e in near)}?"
            raise RequestError(f"{name}: there is no setting for this variable of the environment", hint=hint)
        layer.append(GivenKey(keys[name], value_of(text, name), name, name))
    return [*layers, layer]


def notices(layers: Sequence[Layer], above: Collection[str]) -> list[str]:
    """What to say of a run that such layers are a part of, where the command line sets the keys `above`."""
    return [
        f"{FILE if layer[0].source == FILE else 'the environment'} sets {', '.join(keys)}"
        for layer in layers
        if (keys := [g.key for g in layer if g.key not in above])
    ]
