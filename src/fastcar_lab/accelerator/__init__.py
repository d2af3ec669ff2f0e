"""Figures about the emulated accelerator, and its arithmetic in SystemVerilog against a decode."""
