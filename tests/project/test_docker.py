"""The Dockerfile: that it can build here, as far as that can be seen without docker, and with docker that it does."""

from __future__ import annotations

import fnmatch
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.paths import ROOT

INSTALL = re.compile(r"pip install (?:--no-cache-dir )?(\S+)")


def _instructions() -> list[tuple[str, str]]:
    """Name and text of each instruction."""
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def _of(name: str) -> list[str]:
    return [text for instruction, text in _instructions() if instruction == name]


def test_it_is_about_ten_lines_that_docker_knows() -> None:
    names = [name for name, _ in _instructions()]
    assert {*names} <= {"FROM", "RUN", "COPY", "USER", "WORKDIR", "ENV", "ENTRYPOINT"}
    assert names[0] == "FROM" and names[-1] == "ENTRYPOINT"
    assert len(names) <= 12


def test_the_base_image_is_pinned_and_has_a_python_that_the_package_takes() -> None:
    (image,) = _of("FROM")
    pinned = re.fullmatch(r"python:(3\.\d+)\.\d+-slim-\w+", image)
    assert pinned is not None, image
    assert f'"Programming Language :: Python :: {pinned[1]}"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_what_it_copies_is_there_and_all_that_the_build_reads() -> None:
    copied = [source for text in _of("COPY") for source in text.split()[:-1]]
    assert copied and all((ROOT / source).exists() for source in copied)
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    needed = {"pyproject.toml", "hatch_build.py", "src", "configs", *re.findall(r'path = "(\w+\.md)"', project)}
    needed |= {*re.findall(r'^license-files = \["(.*)"\]', project, re.M)}
    assert needed <= {*copied}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert not [source for source in copied if any(fnmatch.fnmatch(source, pattern) for pattern in ignored)]


def test_the_host_s_native_library_is_not_copied() -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    built = [line for line in (ROOT / ".gitignore").read_text(encoding="utf-8").splitlines() if "/native/" in line]
    assert built and {*built} <= {*ignored}


def test_it_installs_as_the_readme_does() -> None:
    command = next(
        c for c in re.findall(r"^.*pip install.*$", (ROOT / "README.md").read_text("utf-8"), re.M) if "torch" in c
    )
    folder = _of("COPY")[0].split()[-1].rstrip("/")
    installed = [folder if what == "." else what for what in INSTALL.findall(command)]
    assert INSTALL.findall("\n".join(_of("RUN"))) == installed
    assert installed[0].startswith("torch==")


def test_it_runs_fastcar_as_no_root() -> None:
    names = [name for name, _ in _instructions()]
    (user,) = _of("USER")
    assert user not in ("root", "0")
    assert f"useradd {user}" in "\n".join(_of("RUN"))
    assert names.index("USER") > max(i for i, name in enumerate(names) if name == "RUN")
    assert json.loads(_of("ENTRYPOINT")[0]) == ["fastcar"]


@pytest.mark.slow  # Only a build shows that the image's system has what the packages need; it downloads torch.
@pytest.mark.long
def test_docker_builds_it_and_it_makes_a_video(tmp_path: Path) -> None:
    docker = shutil.which("docker")
    if docker is None or subprocess.run([docker, "info"], capture_output=True).returncode:
        pytest.skip("no docker, or no daemon of it, here")
    tag = f"fastcar-test-{tmp_path.parent.name}"
    subprocess.run([docker, "build", "-q", "-t", tag, str(ROOT)], check=True)
    tmp_path.chmod(0o777)
    try:
        command = ["generate", "a red ball on the grass", "-o", "ball.mp4"]
        subprocess.run([docker, "run", "--rm", "-v", f"{tmp_path}:/videos", tag, *command], check=True)
    finally:
        subprocess.run([docker, "rmi", "-f", tag], check=False)
    assert (tmp_path / "ball.mp4").stat().st_size > 1000
