"""LPIPS (Zhang et al. 2018) through the `lpips` package, with a backbone from a file of the user's.

The package brings its calibrated linear layers; the backbone's ImageNet weights it would download are read from
`--lpips-weights` instead: torchvision's state dict of AlexNet or VGG16.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fastcar_cli.errors import Key, RequestError
from fastcar_cli.system.extras import need
from fastcar_cli.system.files import why_unread

_FIRST = {(64, 3, 11, 11): "alex", (64, 3, 3, 3): "vgg"}
"""Shape of the first convolution and the network it belongs to."""


@cache
def load_lpips(file: Path) -> Callable[[NDArray[np.uint8], NDArray[np.uint8]], list[float]]:
    """A function of two videos uint8 [T, H, W, 3] that gives LPIPS by frame.

    Raises RequestError where the extra or the file is missing, or the file holds something else.
    """
    package = need("lpips", (Key("metrics"), " lpips"))
    if not file.is_file():
        raise RequestError(
            "there is no such file",
            key="lpips_weights",
            value=file,
            hint="needed: torchvision's AlexNet or VGG16 state dict (alexnet-owt-7be5be79.pth)",
        )
    try:
        state = torch.load(file, map_location="cpu", weights_only=True)
        kind = _FIRST[tuple(state["features.0.weight"].shape)]
    except Exception as e:  # whatever a damaged or foreign file does to the unpickler
        said = f"is not a state dict of AlexNet or VGG16: {why_unread(e)}"
        raise RequestError(said, key="lpips_weights", value=file) from None
    # The package announces itself on standard output, where only results may be.
    with contextlib.redirect_stdout(io.StringIO()), open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        network = package.LPIPS(net=kind, pretrained=True, pnet_rand=True, verbose=False).eval()
    backbone = network.net.state_dict()
    try:
        # slice3.6.weight of the package is features.6.weight of torchvision.
        network.net.load_state_dict({k: state["features." + k.split(".", 1)[1]] for k in backbone})
    except (KeyError, RuntimeError) as e:
        raise RequestError(f"does not fit {kind}: {str(e).splitlines()[0]}", key="lpips_weights", value=file) from None

    def compare(video: NDArray[np.uint8], reference: NDArray[np.uint8]) -> list[float]:
        v, r = (torch.from_numpy(a).permute(0, 3, 1, 2).float() / 127.5 - 1 for a in (video, reference))
        with torch.inference_mode():
            return [float(x) for x in network(v, r).reshape(-1)]

    return compare
