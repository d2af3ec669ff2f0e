"""The captioned synthetic world of the bundled model: renderer, captions, analyser, training."""
