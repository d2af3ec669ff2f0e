"""What a video begins with: prompts, lists of prompts, clips, actions; words of the bundled worlds."""
