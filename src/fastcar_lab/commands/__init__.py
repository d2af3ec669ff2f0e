"""Commands that the laboratory adds to `fastcar`."""
