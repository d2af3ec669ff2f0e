"""The decode pass through compiled kernels: what `Decode._pass` does, in one call a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastcar_cli.errors import RequestError
from fastcar_cli.models.decoder import Block
from fastcar_cli.models.int8 import Int8Linear
from fastcar_cli.models.video_model import VideoModel

if TYPE_CHECKING:
    from fastcar_cli.decoding.engine import Decode


_EVERYWHERE = np.zeros((0, 0), np.bool_)
_NO_FLAGS = np.zeros((0, 0, 0), np.bool_)
_NOTHING = np.zeros((0, 0, 0), np.float32)


class CompiledPass:
    """Hands the tensors of a decode to `kernels.cpu.decode_pass`; weights and caches are not copied.

    Raises RequestError for what the kernels can't do.
    """

    def __init__(self, decode: Decode, cos: Tensor, sin: Tensor) -> None:
        model, spec = decode.model, decode.model.spec.decoder
        check_compiled(model)
        cpu = _kernels()
        self._kernel, self._cache = cpu.decode_pass, decode.cache
        self._cos, self._sin = (a.float().numpy().reshape(len(a), -1, spec.head_dim) for a in (cos, sin))
        rows, layers, replay = decode.rows, spec.layers, decode.replay
        self._table, self._held = _addresses(model)
        for i in range(layers):
            view = decode.cache.view(i)
            memory = {"keys": view.keys, "values": view.values, "aligned": view.aligned}
            if replay is not None:
                memory["outputs"] = replay.outputs[i]
            for name, tensor in memory.items():
                self._table[i, cpu.COLUMNS.index(name)] = tensor.data_ptr()
                self._held.append(tensor)
        self._formats = (NUMBERS[decode.blocks[0].mlp.gate_proj.weight.dtype], NUMBERS[model.dtype])
        slots, ring = view.keys.shape[2], view.aligned.shape[2]
        self._shape = (spec.heads, spec.kv_heads, spec.head_dim, spec.mlp_width, slots, ring, decode.frame)
        self._dtype = model.dtype
        self._model, self._places, self._embed = model, decode.places, cpu.embed
        self._projection = None
        layer = model.projector.layers
        if isinstance(layer, nn.Linear):
            # One linear map: bias and place vectors are added up once.
            self._projection = layer.weight.float().numpy()
            bias = layer.bias.float()[None]
            self._offsets = (bias if decode.places is None else bias + decode.places.float()).numpy()
        self._norm = (model.llm.norm.weight.float().numpy(), np.float32(spec.rms_eps))
        self._start = view.start.numpy()
        self._buffers = cpu.new_buffers(rows, spec.heads, spec.head_dim)
        self._rules, self._kept = (False, False, -1, False), _NOTHING
        self._taus = np.full((layers, rows), cpu.OFF, np.float32)
        self._replayed = np.zeros((layers, rows, 1), np.bool_)
        self._ages = np.zeros((layers, rows, 1), np.int16)
        if replay is not None:
            self._finite = finite = float(cpu.OFF) / 2
            taus = [cpu.OFF if tau is None else min(max(tau, -finite), finite) for tau in replay.taus]
            self._taus[:] = np.array(taus, np.float32)[:, None]
            max_age = -1 if replay.max_age is None else replay.max_age
            self._rules = (True, replay.pairs, max_age, decode.settings.tas == "released")
            self._replayed, self._ages = replay.replayed.numpy(), replay.ages.numpy()
            if replay.tas is not None:
                self._kept = replay.tas.numpy()
            elif replay.controller is not None:
                # The controller learns from the scores, so they are kept as if asked for.
                self._kept = np.zeros(replay.replayed.shape, np.float32)
        self._replay = replay
        self._forced = _NO_FLAGS
        if replay is not None and replay.forced is not None:
            self._forced = replay.forced.numpy()
        self._state = new_team()

    def __call__(self, latent: Tensor, t: int) -> Tensor:
        """Run the blocks on token t, whose code vectors sum to latent [P, code_width].

        Returns the hidden states [rows, width] after the last norm, in the model's dtype. Torch is called as little as
        can be: after a pass nothing of it is left in the caches, and each call takes as long as a small product.
        """
        residual = np.empty((len(self._start), self._norm[0].shape[0]), np.float32)
        if self._projection is None:
            x = self._model.projector(latent)
            x = x if self._places is None else x + self._places[t]
            residual.reshape(-1, *x.shape)[:] = x.float().numpy()
        else:
            offset = self._offsets[t % len(self._offsets)]
            plain = latent if latent.dtype is torch.float32 else latent.float()
            self._embed(plain.numpy(), self._projection, offset, residual)
        at, frame = self._cache.place(), self._shape[-1]
        controller = None if self._replay is None or t < frame else self._replay.controller
        if controller is not None and self._replay is not None:
            taus = controller.thresholds(t, self._replay.replayed, self._replay.ages)
            self._taus[:] = taus.clamp(-self._finite, self._finite).numpy()
        mask = _EVERYWHERE if at.allowed is None else np.ascontiguousarray(at.allowed.numpy())
        self._kernel(
            self._state,
            residual,
            self._table,
            self._formats,
            self._shape,
            self._norm,
            (self._cos[t], self._sin[t]),
            (mask, self._start),
            (at.slot, at.length, at.aligned_from, at.aligned_to, t % frame, t),
            self._rules,
            (self._taus, self._replayed, self._ages, self._kept, self._forced),
            self._buffers,
        )
        if controller is not None and self._replay is not None:
            controller.observe(slice(None), t, self._replay.gated(torch.from_numpy(self._kept[:, :, t])))
        hidden = torch.from_numpy(residual)
        return hidden if self._dtype is torch.float32 else hidden.to(self._dtype)


NUMBERS: dict[torch.dtype, Any] = {
    torch.float32: np.float32(0),
    torch.bfloat16: np.uint32(0),
    torch.int8: np.int8(0),
}


def _linears(block: Block) -> dict[str, nn.Linear | Int8Linear]:
    attention, mlp = block.self_attn, block.mlp
    return {
        "q": attention.q_proj,
        "k": attention.k_proj,
        "v": attention.v_proj,
        "o": attention.o_proj,
        "gate": mlp.gate_proj,
        "up": mlp.up_proj,
        "down": mlp.down_proj,
    }


def _addresses(model: VideoModel) -> tuple[NDArray[np.int64], list[Tensor]]:
    """The kernels' table with the weights filled in, and the tensors that must live as long as it."""
    cpu = _kernels()
    table = np.zeros((len(model.llm.blocks), len(cpu.COLUMNS)), np.int64)
    held = []
    for i, block in enumerate(model.llm.blocks):
        tensors = {
            "norm1": block.input_layernorm.weight.float(),
            "norm2": block.post_attention_layernorm.weight.float(),
        }
        for name, linear in _linears(block).items():
            tensors[name] = linear.weight
            if isinstance(linear, Int8Linear):
                tensors[f"{name}_scale"] = linear.scale
        for name, tensor in tensors.items():
            if not tensor.is_contiguous():
                raise ValueError(f"layer {i}: {name} is not contiguous")
            table[i, cpu.COLUMNS.index(name)] = tensor.data_ptr()
            held.append(tensor)
    return table, held


class CompiledMLPs:
    """Only the MLP branches of every layer, for timing their share of a pass."""

    def __init__(self, model: VideoModel) -> None:
        check_compiled(model)
        spec = model.spec.decoder
        self._kernel, self._state = _kernels().mlp_branches, new_team()
        self._table, self._held = _addresses(model)
        number = NUMBERS[model.llm.blocks[0].mlp.gate_proj.weight.dtype]
        self._rest = (number, spec.mlp_width, np.float32(spec.rms_eps))

    def __call__(self, x: Tensor, passes: int = 1) -> None:
        """Run them on x [rows, width], each layer on the same numbers."""
        self._kernel(self._state, x.float().numpy(), self._table, *self._rest, passes)


def _kernels() -> Any:
    try:
        from fastcar_cli.kernels import cpu
    except ImportError as e:
        raise RequestError(
            f"--kernels numba: numba can't be imported ({e})", hint="pip install numba, or --kernels torch"
        ) from None
    return cpu


def check_compiled(model: VideoModel) -> None:
    """Raise RequestError where the compiled pass can't run this model."""
    hint = "allowed: --kernels torch"
    if model.device.type != "cpu":
        raise RequestError(f"--kernels numba: they are for the CPU, the model is on {model.device}", hint=hint)
    if model.dtype not in (torch.float32, torch.bfloat16):
        raise RequestError(f"--kernels numba: dtype {str(model.dtype).removeprefix('torch.')}", hint=hint)
    if model.spec.decoder.attention_bias:
        raise RequestError(f"--kernels numba: the model {model.spec.name!r} has attention biases", hint=hint)


def prepare(model: VideoModel) -> None:
    """Compile the kernels for this model's formats, or load them from numba's cache on disk.

    The first time on a machine takes 10 s to a minute. Raises RequestError as `check_compiled` does.
    """
    check_compiled(model)
    line, cube = np.zeros((1, 2), np.float32), np.zeros((0, 1, 1), np.float32)
    formats = (NUMBERS[model.llm.blocks[0].mlp.gate_proj.weight.dtype], NUMBERS[model.dtype])
    cpu = _kernels()
    # A table without layers: everything is typed and compiled, nothing runs.
    cpu.decode_pass(
        new_team(1),
        line.copy(),
        np.zeros((0, len(cpu.COLUMNS)), np.int64),
        formats,
        (1, 1, 2, 4, 1, 1, 1),
        (np.ones(2, np.float32), np.float32(1e-6)),
        (line, line),
        (_EVERYWHERE, np.zeros(1, np.int64)),
        (0, 1, 0, 0, 0, 0),
        (False, False, -1, False),
        (np.zeros((0, 1), np.float32), cube.astype(np.bool_), cube.astype(np.int16), cube, cube.astype(np.bool_)),
        cpu.new_buffers(1, 1, 2),
    )
    from fastcar_cli.decoding.compiled_depth import CompiledDepth

    spec = model.depth.spec
    depth = CompiledDepth(model.depth, 1)
    depth(torch.zeros(1, spec.hidden), 0)


def new_team(threads: int | None = None) -> NDArray[np.int64]:
    """The state of a team of kernels' threads: as many as torch has, unless told."""
    import numba

    from fastcar_cli.kernels.team import new_state

    most: Any = numba.config
    asked = torch.get_num_threads()
    if threads is None:
        threads = min(asked, int(most.NUMBA_NUM_THREADS))
    numba.set_num_threads(threads)
    # Both may count on the same OpenMP: numba, when it starts its threads, sets torch's number to all.
    if torch.get_num_threads() != asked:
        torch.set_num_threads(asked)
    return new_state(threads)
