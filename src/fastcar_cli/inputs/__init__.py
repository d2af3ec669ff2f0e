"""Inputs of a video: prompts, prompt files, clips, actions; vocabulary of the bundled worlds."""
