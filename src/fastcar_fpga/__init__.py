"""`fpga-sim`: an emulated multi-core FPGA accelerator with Dynamic Resource Scheduling (DRS).

The accelerator is the one of FastCar (arXiv 2505.14709), as far as it is published; docs/fpga.md
says what is our own reading.
"""
