"""Check the native library of a wheel: `check_wheel.py TAG WHEEL`, with lief and auditwheel installed.

The wheel holds one library, for the machine of its tag and no newer a system, which imports no more than every such
system has. Prints what it is.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile

import lief

MACHINES = {
    "x86_64": (lief.ELF.ARCH.X86_64, lief.MachO.Header.CPU_TYPE.X86_64, lief.PE.Header.MACHINE_TYPES.AMD64),
    "arm64": (lief.ELF.ARCH.AARCH64, lief.MachO.Header.CPU_TYPE.ARM64, lief.PE.Header.MACHINE_TYPES.ARM64),
}
SYSTEM = ("libc.so", "libpthread.so", "/usr/lib/libSystem.", "KERNEL32.dll", "api-ms-win-crt-", "ntdll.dll")
"""Libraries that every system has, by the beginning of their names."""


def main(tag: str, wheel: str) -> None:
    """Raise AssertionError for what is wrong."""
    with zipfile.ZipFile(wheel) as packed:
        names = [n for n in packed.namelist() if "/kernels/native/" in n and n.endswith((".so", ".txt"))]
        assert names == ["fastcar_cli/kernels/native/libfastcar.so"], f"{wheel} has {names}"
        library = lief.parse(list(packed.read(names[0])))
        metadata = next(n for n in packed.namelist() if n.endswith(".dist-info/WHEEL"))
        assert f"py3-none-{tag}" in packed.read(metadata).decode(), f"{wheel} has another tag"
    assert library is not None, f"{wheel}: its library can't be read"
    machine = "arm64" if tag.endswith(("aarch64", "arm64")) else "x86_64"
    found = getattr(library.header, "machine_type", None) or getattr(library.header, "machine", None)
    found = found or library.header.cpu_type
    assert found in MACHINES[machine], f"{wheel}: its library is for {found}"
    imported = [str(getattr(each, "name", each)) for each in library.libraries]
    imported = [name for name in imported if not name.endswith("libfastcar.so")]
    assert all(name.startswith(SYSTEM) for name in imported), f"{wheel}: its library needs {imported}"
    exported = {str(each.name).lstrip("_") for each in library.exported_functions}
    assert {"fastcar_instruction_set", "fastcar_kernels", "fastcar_sources"} <= exported, exported
    about = f"{library.format.name}, {machine}, imports {', '.join(imported) or 'no library'}"
    if tag.startswith("macosx"):
        oldest = library.build_version.minos[:2]
        assert oldest == [11, 0], f"{wheel}: its library needs macOS {oldest}"
        about += ", macOS 11.0"
    if "linux" in tag:
        done = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
        said = " ".join(done.stdout.split())
        assert done.returncode == 0 and tag.split("_")[0] in said, f"{wheel}: auditwheel: {done.stdout} {done.stderr}"
        about += f"; auditwheel: {said.partition('following platform tag: ')[2].split('.')[0]}"
    print(f"{wheel.rpartition('/')[2]}: {about}")


if __name__ == "__main__":
    main(*sys.argv[1:])
