"""The laboratory: how the bundled models and the published figures were made. fastcar_cli never imports it."""
