"""TorchScript archives read as data, and what is refused of them."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from support.causal_video import TINY, loaded
from torch import Tensor, nn

from fastcar_cli.errors import RequestError
from fastcar_cli.models.cosmos.checkpoint import PUBLISHED, read_tokenizer_spec
from fastcar_cli.weights.torchscript import TorchScriptFile
from fastcar_lab.dummy.causal_video import tensors_of, write
from fastcar_lab.dummy.torchscript import Storage, module_of, write_archive

DATA = {"a.0.w": torch.arange(6.0).view(2, 3), "n": torch.tensor([1, 2], dtype=torch.int32)}


def archive(tmp_path: Path, root: Any) -> Path:
    write_archive(tmp_path / "x.jit", root)
    return tmp_path / "x.jit"


def contents(path: Path) -> dict[str, Tensor]:
    file = TorchScriptFile(path)
    return {name: file.rows(name, 0, shape[0] if shape else 1) for name, shape in file.shapes.items()}


def assert_same(given: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    assert given.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert given[key].dtype == tensor.dtype, key
        assert torch.equal(given[key], tensor), key


def rewritten(path: Path, change: Callable[[str, bytes], bytes]) -> None:
    """The archive with other bytes in its members."""
    with zipfile.ZipFile(path) as old:
        members = {name: change(name, old.read(name)) for name in old.namelist()}
    with zipfile.ZipFile(path, "w") as new:
        for name, data in members.items():
            new.writestr(name, data)


def test_tensors_of_any_memory_layout_come_back(tmp_path: Path) -> None:
    tensors = {
        **DATA,
        "last": torch.randn(3, 4, 1, 3, 3).to(memory_format=torch.channels_last_3d),
        "part": torch.randn(10, 4)[2:8:2, 1:],
        "turned": torch.randn(3, 5).T,
        "half": torch.randn(4).bfloat16(),
        "scalar": torch.tensor(2.5),
    }
    assert_same(contents(archive(tmp_path, module_of(tensors))), tensors)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    module = nn.Module()
    module.inner = nn.ModuleList([nn.Linear(2, 3), nn.GroupNorm(1, 2)]).to(torch.bfloat16)
    torch.jit.script(module).save(str(tmp_path / "x.jit"))
    assert_same(contents(tmp_path / "x.jit"), dict(module.state_dict()))


def test_the_program_is_never_opened(tmp_path: Path) -> None:
    path = archive(tmp_path, module_of(DATA))
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("archive/code/__torch__.py", "raise SystemExit")
    data = path.read_bytes()
    # Whoever opens that member now finds it damaged.
    path.write_bytes(data.replace(b"raise SystemExit", b"RAISE SystemExit"))
    assert_same(contents(path), DATA)


class Calling:
    """A pickle that makes a folder when it is loaded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


class Forged:
    """A tensor of this shape and strides over a storage of two numbers."""

    def __init__(self, shape: Any, strides: Any, offset: Any = 0) -> None:
        self.place = offset, shape, strides

    def __reduce__(self) -> Any:
        storage = Storage(("storage", torch.FloatStorage, "0", "cpu", 2))
        return torch._utils._rebuild_tensor_v2, (storage, *self.place, False, {})


def endless() -> Any:
    root = module_of(DATA)
    vars(root)["again"] = root
    return root


def holding(value: Any) -> Any:
    root = module_of(DATA)
    vars(root)["x"] = value
    return root


@pytest.mark.parametrize(
    ("root", "why"),
    [
        (lambda folder: holding(Calling(folder)), r"it holds \w+\.mkdir, but fastcar reads only modules and tensors"),
        (lambda folder: holding(Fraction(1, 2)), r"it holds fractions\.Fraction, but"),
        (lambda folder: holding(print), r"it holds \w+\.print, but"),
        (lambda folder: {"a": torch.zeros(2)}, "it holds no module"),
        (lambda folder: endless(), "its modules are nested in a cycle"),
        (lambda folder: holding(Forged((3,), (1,))), "a tensor reaches beyond its storage"),
        (lambda folder: holding(Forged((2,), (1,), 1)), "a tensor reaches beyond its storage"),
        (lambda folder: holding(Forged((2,), (-1,), 1)), "the shape of a tensor is invalid"),
        (lambda folder: holding(Forged((2,), (1, 1))), "the shape of a tensor is invalid"),
    ],
    ids=["call", "class", "function", "no module", "loop", "long", "offset", "backwards", "strides"],
)
def test_a_foreign_pickle_is_refused_in_one_sentence(tmp_path: Path, root: Any, why: str) -> None:
    folder = tmp_path / "made"
    path = archive(tmp_path, root(folder))
    with pytest.raises(RequestError, match=rf"^weights file {re.escape(str(path))} can't be read: {why}"):
        TorchScriptFile(path)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda name, data: b"big" if name.endswith("byteorder") else data, "its numbers are big-endian"),
        (lambda name, data: data[:-1] if name.endswith("data.pkl") else data, "."),
        (lambda name, data: b"" if name.endswith("data.pkl") else data, "."),
    ],
)
def test_a_damaged_pickle_is_refused(tmp_path: Path, change: Any, why: str) -> None:
    path = archive(tmp_path, module_of(DATA))
    rewritten(path, change)
    with pytest.raises(RequestError, match=rf"can't be read: {why}"):
        TorchScriptFile(path)


def test_a_storage_of_another_size_is_refused(tmp_path: Path) -> None:
    path = archive(tmp_path, module_of(DATA))
    rewritten(path, lambda name, data: data[:-4] if name.endswith("data/0") else data)
    with pytest.raises(RequestError, match="archive/data/0 has 20 bytes, expected 24"):
        contents(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.9, 0.999])
def test_a_truncated_archive_is_refused(tmp_path: Path, share: float) -> None:
    path = archive(tmp_path, module_of(DATA))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(RequestError, match="can't be read"):
        TorchScriptFile(path)


def test_an_archive_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.jit", "w") as file:
        file.writestr("readme.txt", "hello")
    with pytest.raises(RequestError, match="it is not a TorchScript archive"):
        TorchScriptFile(tmp_path / "x.jit")


def test_specification_and_weights_come_back(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    assert read_tokenizer_spec(tmp_path) == TINY
    state = loaded(tmp_path, torch.bfloat16).state_dict()
    written = {k: t for tensors in tensors_of(TINY, torch.bfloat16).values() for k, t in tensors.items()}
    assert_same(dict(state), {k: written[k] for k in state})


@pytest.mark.slow
def test_the_published_specification_has_the_published_sizes() -> None:
    sizes = [sum(t.nbytes for t in half.values()) for half in tensors_of(PUBLISHED, torch.bfloat16).values()]
    # 92 and 132 MB on the hub, with what a program takes.
    assert [round(size / 1e6) for size in sizes] == [91, 131]
    assert (PUBLISHED.codes, PUBLISHED.space, PUBLISHED.time) == (64_000, 16, 8)


def changed(folder: Path, half: str, change: Callable[[dict[str, Tensor]], Any]) -> None:
    tensors = tensors_of(TINY, torch.float32)[half]
    change(tensors)
    write_archive(folder / f"{half}.jit", module_of(tensors), half)


def test_missing_and_unexpected_keys_are_named(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    changed(tmp_path, "encoder", lambda t: t.pop("encoder.mid.block_1.norm1.norm.bias"))
    with pytest.raises(RequestError, match=r"encoder\.jit lacks key 'encoder\.mid\.block_1\.norm1\.norm\.bias'"):
        loaded(tmp_path)
    changed(tmp_path, "encoder", lambda t: t.pop("quantizer._levels"))
    with pytest.raises(RequestError, match=r"encoder\.jit lacks key 'quantizer\._levels'"):
        loaded(tmp_path)
    write(tmp_path, TINY)
    changed(tmp_path, "decoder", lambda t: t.update({"decoder.up.0.attn.0.q": torch.zeros(1)}))
    with pytest.raises(RequestError, match=r"decoder\.jit has unexpected key 'decoder\.up\.0\.attn\.0\.q'"):
        loaded(tmp_path)


def test_shapes_that_do_not_fit_are_named(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    changed(tmp_path, "decoder", lambda t: t.update({"decoder.conv_in.1.conv3d.bias": torch.zeros(9)}))
    with pytest.raises(RequestError, match=r"key 'decoder\.conv_in\.1\.conv3d\.bias': shape \[9\], expected \[4\]"):
        loaded(tmp_path)


def test_halves_of_two_tokenizers_are_refused(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    upsampler = "decoder.up.2.upsample."
    changed(tmp_path, "decoder", lambda t: [t.pop(k) for k in list(t) if k.startswith(upsampler)])
    with pytest.raises(RequestError, match=r"encoder\.jit and decoder\.jit belong to different tokenizers"):
        read_tokenizer_spec(tmp_path)


def test_missing_and_swapped_files_are_refused(tmp_path: Path) -> None:
    write(tmp_path, TINY)
    shutil.move(tmp_path / "encoder.jit", tmp_path / "kept.jit")
    with pytest.raises(RequestError, match=r"encoder\.jit is missing"):
        read_tokenizer_spec(tmp_path)
    shutil.move(tmp_path / "decoder.jit", tmp_path / "encoder.jit")
    shutil.move(tmp_path / "kept.jit", tmp_path / "decoder.jit")
    with pytest.raises(RequestError, match=r"encoder\.jit lacks key"):
        read_tokenizer_spec(tmp_path)
