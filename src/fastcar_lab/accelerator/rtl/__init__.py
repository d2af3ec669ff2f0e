"""The accelerator's scheduler and sequencers in SystemVerilog, held to the emulator cycle by cycle (docs/rtl.md)."""
