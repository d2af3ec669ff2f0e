"""Prints the codes of four videos of `mini`, in float32 and int8, and the instruction set that decoded them."""

from __future__ import annotations

import hashlib

from fastcar_cli import Pipeline
from fastcar_cli.kernels import native

if __name__ == "__main__":
    for form in ("float32", "int8"):
        pipe = Pipeline.from_pretrained("mini", frames=4, dtype=form)
        for seed in (1, 2):
            video = pipe.stream(["a red ball rolling to the right on the grass"], [seed])
            for _ in video:
                pass
            print(form, seed, pipe.codes.shape, hashlib.sha256(pipe.codes.tobytes()).hexdigest())
    print(native.instruction_set())
