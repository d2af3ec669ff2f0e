"""Inputs of a video: prompts, lists of prompts, clips, actions; words of the bundled worlds."""
