"""Native CPU kernels: C++ in `source/`, built with the package and loaded with ctypes."""

from fastcar_cli.kernels.native.decoder import BlockWeights, DecoderPass
from fastcar_cli.kernels.native.depth import CodeDraw, DepthBlockWeights, DepthWeights
from fastcar_cli.kernels.native.library import Product, instruction_set, instruction_sets, linear, unavailable
from fastcar_cli.kernels.native.structs import MOST_ROWS, Linear

__all__ = [
    "MOST_ROWS",
    "BlockWeights",
    "CodeDraw",
    "DecoderPass",
    "DepthBlockWeights",
    "DepthWeights",
    "Linear",
    "Product",
    "instruction_set",
    "instruction_sets",
    "linear",
    "unavailable",
]
