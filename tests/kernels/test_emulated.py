"""The native kernels of ARM under qemu, and of Windows under Wine.

CI runs `pytest -m emulated`; `pytest -m long tests/kernels/test_emulated.py` adds videos, Windows' library
and passes of the other sets.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from support.paths import ROOT

from fastcar_cli.kernels import native
from fastcar_cli.kernels.native import build

HERE = Path(__file__).parent
SETS = {"neon": [], "neon+dotprod": build.SETS["aarch64"]["dotprod"], "neon+i8mm": build.SETS["aarch64"]["i8mm"]}
FORMATS = {"float32": 0, "bfloat16": 1, "int8": 2, "int4": 3}
"""Their numbers in formats.h."""
INSTRUCTIONS = {
    ("int8", 1): (0.703, 0.531, 0.468),
    ("int8", 8): (0.497, 0.318, 0.308),
    ("int4", 1): (0.427, 0.396, 0.396),
    ("int4", 8): (0.281, 0.245, 0.245),
}
"""Instructions of ARM per multiply-add by format and inputs, in the order of SETS; docs/install.md has them too.

Those of zig 0.17.1; other compilers may take a tenth more."""
NEEDED = {"qemu-aarch64": "apt-get install qemu-user", "mmdebstrap": "apt-get install mmdebstrap", "gcc": "gcc"}
PACKAGES = """
    torch==2.9.1 numpy<2.4 sympy mpmath networkx jinja2 markupsafe filelock fsspec typing_extensions psutil tqdm
    typing-inspection annotated-types pytest pluggy iniconfig packaging pygments hypothesis sortedcontainers
    typer click shellingham rich markdown-it-py mdurl imageio av pillow torchmetrics lightning-utilities setuptools
    sentencepiece huggingface_hub httpx httpcore anyio h11 idna certifi safetensors pyyaml annotated-doc
""".split()
"""What fastcar and the tests of the kernels import, for Debian's Python 3.11 on ARM; of pydantic the version here."""

WINE = [name for name in ("/usr/lib/wine/wine64", "/usr/bin/wine64") if os.path.exists(name)][:1]

lacking = [f"{tool} ({how})" for tool, how in NEEDED.items() if shutil.which(tool) is None]
lacking += [] if importlib.util.find_spec("ziglang") else ["ziglang (pip install ziglang)"]
pytestmark = [
    pytest.mark.long, pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or bool(lacking), reason=f"Linux with {', '.join(lacking)} is needed"),
]  # fmt: skip
Product = Callable[[str, str, int, int, int], str]
"""Runs a product: set, format, inputs, outputs, rows; returns what it and the plugin print."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("emulated")
    with pytest.MonkeyPatch.context() as patch:
        for cache in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR"):
            patch.setenv(cache, os.environ.get(cache, str(path / "zig")))
        yield path


@pytest.fixture(scope="module")
def product(folder: Path) -> Product:
    """Programs of one product each for the sets of ARM, and for x86-64 with four lanes and FMA on Linux and Windows."""
    subprocess.run(["gcc", "-shared", "-fPIC", HERE / "emulated/count.c", "-o", folder / "count.so"], check=True)
    sources = [build.SOURCES / "kernels.cpp", build.SOURCES / "team.cpp", HERE / "emulated/product.cpp"]
    targets = dict.fromkeys(SETS, "aarch64-linux-musl") | {"x86": "x86_64-linux-musl", "windows": "x86_64-windows-gnu"}
    for name, target in targets.items():
        compiler = build.zig(target)
        assert compiler is not None
        command = [*compiler, "-static", "-x", "c++", *build.FLAGS, *SETS.get(name, ["-mfma"]), "-DNAME=kernels"]
        subprocess.run([*command, f"-I{build.SOURCES}", *sources, "-o", folder / name], check=True)

    def run(name: str, *numbers: str | int) -> str:
        qemu = ["qemu-x86_64" if name == "x86" else "qemu-aarch64", "-cpu", "max", "-plugin", folder / "count.so"]
        given = [str(FORMATS.get(str(n), n)) for n in numbers]
        return output([*(WINE if name == "windows" else qemu), folder / name, *given], folder)

    return run


def output(command: list[str | Path], folder: Path) -> str:
    wine = {"WINEPREFIX": str(folder / "wine"), "WINEDEBUG": "-all"}
    done = subprocess.run(command, env={**os.environ, **wine}, capture_output=True, text=True, check=True)
    return done.stderr + done.stdout


@pytest.mark.emulated
@pytest.mark.parametrize(("kind", "rows"), INSTRUCTIONS)
@pytest.mark.parametrize("name", SETS)
def test_instructions_of_a_product(product: Product, name: str, kind: str, rows: int) -> None:
    few, more = (int(product(name, kind, 4096, outputs, rows).split()[1]) for outputs in (64, 128))
    counted = (more - few) / (64 * 4096 * rows)
    print(f"{name}, {kind}, {rows} inputs: {counted:.3f} instructions per multiply-add")
    assert 0 < counted <= 1.1 * INSTRUCTIONS[kind, rows][list(SETS).index(name)]


@pytest.mark.emulated
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("rows", [1, 2, 8])
@pytest.mark.parametrize("inputs", [4096, 2080])
def test_products_are_those_of_x86_to_the_bit(product: Product, kind: str, rows: int, inputs: int) -> None:
    names = (*SETS, "x86", *(["windows"] if WINE else []))
    hashes = {name: product(name, kind, inputs, 64, rows).split()[-1] for name in names}
    assert len(set(hashes.values())) == 1, hashes


@pytest.mark.skipif(not WINE, reason="Wine is needed: apt-get install wine64")
def test_windows_loads_the_library(folder: Path) -> None:
    target = build.TARGETS["win_amd64"]
    compiler = build.zig(target)
    assert compiler is not None
    build.compile_with(compiler, folder / build.NAME, folder, target=target)
    subprocess.run([*compiler, HERE / "emulated/load.c", "-o", folder / "load.exe"], check=True)
    printed = output([*WINE, folder / "load.exe", folder / build.NAME], folder).splitlines()
    # Wine prints notes on its first start.
    assert [name for name in printed if not name.startswith("wine")] == list(native.instruction_sets())


@pytest.fixture(scope="module")
def python(folder: Path) -> list[str | Path]:
    """Python of ARM as a command, with the library built for it, in a tree of Debian's that needs no chroot."""
    tree, site, checkout = folder / "tree", folder / "site", folder / "checkout"
    debian = ["mmdebstrap", "--variant=extract", "--arch=arm64", "--include=python3,libstdc++6,libgomp1", "bookworm"]
    subprocess.run([*debian, tree], check=True)
    # qemu looks for a folder in the tree first, and would not find a checkout below one of these.
    for name in ("tmp", "home", "root", "srv", "mnt", "opt"):
        shutil.rmtree(tree / name, ignore_errors=True)
    pydantic = [f"{name}=={version(name)}" for name in ("pydantic", "pydantic_core")]
    platforms = [f"--platform=manylinux_2_{n}_aarch64" for n in (17, 27, 28)]
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.11"]
    subprocess.run([*pip, *platforms, "--target", site, *PACKAGES, *pydantic], check=True)
    for part in ("src", "configs"):
        shutil.copytree(ROOT / part, checkout / part)
    target = build.TARGETS["manylinux_2_17_aarch64"]
    compiler = build.zig(target)
    assert compiler is not None
    build.compile_with(compiler, checkout / "src/fastcar_cli/kernels/native" / build.NAME, folder, target=target)
    path = os.pathsep.join(map(str, (checkout / "src", ROOT / "tests", site)))
    qemu: list[str | Path] = ["qemu-aarch64", "-cpu", "max,pauth-impdef=on", "-L", tree, "-E", f"PYTHONPATH={path}"]
    return [*qemu, "-E", "PYTHONHOME=/usr", "-E", "OMP_NUM_THREADS=1", tree / "usr/bin/python3"]


@pytest.mark.parametrize("name", ["neon", "neon+dotprod", pytest.param("neon+i8mm", marks=pytest.mark.emulated)])
def test_kernels_pass_their_tests(python: list[str | Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTCAR_KERNELS_ISA", name)
    # Those of products run every set at once, and draws are the same for all. A test that forks starts another Python.
    files = [f"test_native{part}.py" for part in ("", "_window", *(["_products"] if name == "neon+i8mm" else []))]
    chosen = "not forked" if name == "neon+i8mm" else "a_pass or one_token or logits"
    command: list[str | Path] = [
        *python,
        "-m",
        "pytest",
        "-q",
        "--noconftest",
        "-c",
        "/dev/null",
        "--rootdir",
        HERE,
        *files,
    ]
    done = subprocess.run([*command, "-p", "no:cacheprovider", "-k", chosen], capture_output=True, text=True, cwd=HERE)
    print(done.stdout)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_videos_have_the_codes_of_x86(python: list[str | Path], folder: Path) -> None:
    codes: str | Path = HERE / "emulated/codes.py"
    here: list[str | Path] = [sys.executable, codes]
    *emulated, found = output([*python, codes], folder).splitlines()
    *wanted, _ = output(here, folder).splitlines()
    assert found == "neon+i8mm"
    assert [line for line in emulated if line.startswith(("float32", "int8"))] == wanted
