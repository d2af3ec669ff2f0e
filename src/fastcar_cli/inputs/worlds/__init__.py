"""The words of the bundled models' worlds, and where things are in them: what inference needs of a world."""
