"""Native CPU kernels: C++ in `source/`, built with the package and loaded with ctypes."""

from fastcar_cli.kernels.native.decoder import BlockWeights, CrossWeights, DecoderPass
from fastcar_cli.kernels.native.depth import CodeDraw, DepthBlockWeights, DepthWeights, NormWeights
from fastcar_cli.kernels.native.library import instruction_set, instruction_sets, unavailable
from fastcar_cli.kernels.native.linear import Product, linear
from fastcar_cli.kernels.native.structs import MOST_ROWS, Linear

__all__ = [
    "MOST_ROWS",
    "BlockWeights",
    "CodeDraw",
    "CrossWeights",
    "DecoderPass",
    "DepthBlockWeights",
    "DepthWeights",
    "Linear",
    "NormWeights",
    "Product",
    "instruction_set",
    "instruction_sets",
    "linear",
    "unavailable",
]
